"""The random numbers of a process: python, numpy, torch on the CPU and on the accelerator, as one
byte string and back."""

from __future__ import annotations

import ctypes
import random
import struct
import sys
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import torch

from taskd.worker import plain

_MT_BYTES = 625 * 4  # a Mersenne twister: 624 words and an index


class RandomState:
    """Takes and puts back the process's generators. Taking costs ~5 us where nothing has changed:
    python's own getstate alone would be 7, numpy's 22."""

    def __init__(self, device: torch.device) -> None:
        self._device = device if device.type != "cpu" else None
        # (what tells whether it has changed, the state)
        self._python: tuple[Any, bytes] = ((), b"")
        self._python_address = _python_address()
        self._numpy: tuple[bytes, bytes] = (b"", b"")
        self._numpy_generator: Any = None
        self._numpy_address: int | None = None
        self._more: list[Any] = []

    def watch(self, generators: Iterable[Any]) -> None:
        """From now on these are taken and put back too: what the script's loaders draw from. The
        order in which they are named is the same in every process of a rank; a state that was taken
        before one was named leaves it as it is."""
        self._more += [g for g in generators if not any(g is known for known in self._more)]

    def take(self) -> bytes:
        parts = [
            torch.get_rng_state().numpy().tobytes(),
            self._take_python(),
            self._take_numpy(),
            b"",
        ]
        if self._device is not None:
            parts[3] = (
                torch.get_device_module(self._device).get_rng_state(self._device).numpy().tobytes()
            )
        parts += [_take(generator) for generator in self._more]
        return b"".join(len(p).to_bytes(4, "little") + p for p in parts)

    def put(self, state: bytes) -> None:
        """Raises RuntimeError for a state of generators that this process does not have."""
        parts, at = [], 0
        while at < len(state):
            size = int.from_bytes(state[at : at + 4], "little")
            parts.append(state[at + 4 : at + 4 + size])
            at += 4 + size
        if not 4 <= len(parts) <= 4 + len(self._more):
            raise RuntimeError(
                f"the record has {len(parts) - 4} generators of loaders, this process has"
                f" {len(self._more)}"
            )
        torch.set_rng_state(torch.frombuffer(bytearray(parts[0]), dtype=torch.uint8))
        random.setstate(plain.decode(parts[1]))
        if parts[2]:
            import numpy

            numpy.random.set_state(plain.decode(parts[2]))
        if self._device is not None:
            torch.get_device_module(self._device).set_rng_state(
                torch.frombuffer(bytearray(parts[3]), dtype=torch.uint8), self._device
            )
        for generator, part in zip(self._more, parts[4:], strict=False):
            _put(generator, part)

    def _take_python(self) -> bytes:
        """python's state; where the generator's raw memory and its cached deviate are as before, so
        is the state."""
        if self._python_address is None:
            return plain.encode(random.getstate())
        mark = (ctypes.string_at(self._python_address, _MT_BYTES), random._inst.gauss_next)  # type: ignore[attr-defined]
        if mark != self._python[0]:
            self._python = (mark, plain.encode(random.getstate()))
        return self._python[1]

    def _take_numpy(self) -> bytes:
        """numpy's state; where the memory of the generator and of what draws from it is as before,
        so is the state."""
        numpy = sys.modules.get("numpy")
        if numpy is None:
            return b""
        drawing = numpy.random.mtrand._rand
        generator = drawing._bit_generator
        if generator is not self._numpy_generator:
            self._numpy_generator = generator
            usual = type(generator).__name__ == "MT19937" and _deviate_lies_inside(type(drawing))  # type: ignore[arg-type]
            self._numpy_address = generator.ctypes.state_address if usual else None
        if self._numpy_address is None:
            return plain.encode(numpy.random.get_state(legacy=False))
        mark = ctypes.string_at(self._numpy_address, _MT_BYTES) + _inside(drawing)
        if mark != self._numpy[0]:
            self._numpy = (mark, plain.encode(numpy.random.get_state(legacy=False)))
        return self._numpy[1]


def _take(generator: Any) -> bytes:
    """The state of one generator object; `loading.is_generator` has the kinds."""
    if isinstance(generator, torch.Generator):
        return generator.get_state().numpy().tobytes()
    if isinstance(generator, random.Random):
        return plain.encode(generator.getstate())
    if hasattr(generator, "bit_generator"):  # numpy.random.Generator
        return plain.encode(generator.bit_generator.state)
    return plain.encode(generator.get_state(legacy=False))


def _put(generator: Any, state: bytes) -> None:
    if isinstance(generator, torch.Generator):
        generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    elif isinstance(generator, random.Random):
        generator.setstate(plain.decode(state))
    elif hasattr(generator, "bit_generator"):
        generator.bit_generator.state = plain.decode(state)
    else:
        generator.set_state(plain.decode(state))


def _inside(thing: object) -> bytes:
    """An object's memory behind its head."""
    return ctypes.string_at(
        id(thing) + object.__basicsize__, type(thing).__basicsize__ - object.__basicsize__
    )


@cache
def _deviate_lies_inside(kind: Callable[[int], Any]) -> bool:
    """Whether a numpy.random.RandomState keeps the second normal deviate, which it draws in
    advance, in its own memory."""
    trial = kind(1)
    trial.normal()
    kept = _inside(trial)
    trial.normal()
    return _inside(trial) != kept


def _python_address() -> int | None:
    """Where CPython keeps the state of `random`'s generator (an index and 624 words behind the
    object's head), or None where what is there is not what getstate() says."""
    address = id(random._inst) + object.__basicsize__  # type: ignore[attr-defined]
    words = struct.unpack("i624I", ctypes.string_at(address, _MT_BYTES))
    return address if (*words[1:], words[0]) == random.getstate()[1] else None

"""A process's generators as one byte string and back: python, numpy, torch on CPU and
accelerator."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch

from taskd.cython_api import attempt
from taskd.cython_api.part import Generators
from taskd.worker.state import generator_memory, plain
from taskd.worker.state.generator_memory import Pieces
from taskd.worker.state.part import NUMBERS, Content, Part


class RandomState(Generators, Part):
    """The states of the process's generators. Their memory shows whether any has drawn; if none
    has, `snapshot` returns the same bytes."""

    name, label, order = "random", "random numbers", NUMBERS

    def __init__(self, device: torch.device) -> None:
        self._device = device if device.type != "cpu" else None
        self._more: list[Any] = []
        self._early: list[bytes] = []  # restored states of generators that are not watched yet
        self.taken = b""
        self._python = _Source(lambda: plain.encode(random.getstate()), generator_memory.of_python)
        self._numpy = _nothing()
        self._arrange()

    def watch(self, generators: Iterable[Any]) -> None:
        """Take and restore `generators` too, those that the script's loaders draw from. They are
        added in the same order in every process of a rank; a state taken before one was added
        leaves it as it is."""
        for generator in generators:
            if not any(generator is known for known in self._more):
                self._more.append(generator)
                if self._early:
                    _put(generator, self._early.pop(0))
        self._arrange()

    def _arrange(self) -> None:
        """Set the parts of a state, in order."""
        device = self._device
        accelerator = _nothing()
        if device is not None:
            module = torch.get_device_module(device)
            accelerator = _Source(lambda: module.get_rng_state(device).numpy().tobytes())
        self._sources = [
            _of_generator(torch.default_generator),
            self._python,
            self._numpy,
            accelerator,
            *map(_of_generator, self._more),
        ]
        self._remember()

    def _remember(self) -> None:
        """Collect the memory that shows changes, or none if any part lacks it: that part is then
        asked each time."""
        memories = [source.memory for source in self._sources]
        self.memories = [m for m in memories if m is not None] if None not in memories else []

    def ask(self) -> bytes:
        """`snapshot`, where something may have changed."""
        drawing, gauss = self.numpys(), random._inst.gauss_next  # type: ignore[attr-defined]
        if drawing is not self.drawing:
            self.drawing, self._numpy = drawing, _of_numpy(sys.modules.get("numpy"), drawing)
            self._arrange()
        if gauss is not self.gauss:
            self.gauss = gauss
            self._python.stale()
        parts = [source.snapshot() for source in self._sources]
        self._remember()
        taken = join(parts)
        if taken != self.taken:
            self.taken = taken
        return self.taken

    def renew(self, step: int, whole: bool) -> Content:
        return Content(self.snapshot())

    def put(self, content: Content) -> None:
        self.restore(bytes(content.data))

    def holds(self, content: Content) -> bool:
        return self.snapshot() == content.data

    def restore(self, state: bytes) -> None:
        """Put back what `snapshot` returned; generators that this process does not watch yet are
        restored as soon as it does."""
        parts = split(state)
        if len(parts) < 4:
            raise RuntimeError(f"a record of {len(parts)} generators: at least 4 are known")
        self._early = parts[4 + len(self._more) :]
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

    def complete(self) -> None:
        """Raise RuntimeError if restored generators are missing when training begins."""
        if self._early:
            raise RuntimeError(
                f"the record has {len(self._more) + len(self._early)} generators of loaders, this"
                f" process has {len(self._more)}"
            )


def join(parts: Iterable[bytes]) -> bytes:
    """The states of single generators as one."""
    return b"".join([len(p).to_bytes(4, "little") + p for p in parts])


def split(state: bytes) -> list[bytes]:
    """The reverse of `join`."""
    parts, at = [], 0
    while at < len(state):
        size = int.from_bytes(state[at : at + 4], "little")
        parts.append(state[at + 4 : at + 4 + size])
        at += 4 + size
    return parts


class _Source:
    """One part of the state. `ask` gives its bytes; `find` the memory that it depends on, None if
    unknown; `place` the owner of that memory."""

    def __init__(
        self,
        ask: Callable[[], bytes],
        find: Callable[[], Pieces | None] = lambda: None,
        place: Callable[[], object] = lambda: None,
    ) -> None:
        self._ask, self._find, self._place = ask, find, place
        self._part = b""
        self._locate()

    def _locate(self) -> None:
        pieces = self._find()
        self.memory = attempt.Memory(pieces) if pieces is not None else None
        self._at = self._place()

    def stale(self) -> None:
        """Discard what is known."""
        if self.memory is not None:
            self.memory.forget()

    def snapshot(self) -> bytes:
        if self.memory is None:
            return self._ask()
        if not self.memory.same():
            if self._place() != self._at:
                self._locate()
            # before asking, so that a draw in between shows the next time
            if self.memory is not None:
                self.memory.take()
            self._part = self._ask()
        return self._part


def _nothing() -> _Source:
    return _Source(lambda: b"", list)


def _of_numpy(numpy: Any, drawing: Any) -> _Source:
    """The source that numpy.random's functions draw from; its generator may be replaced."""
    if drawing is None:
        return _nothing()
    return _Source(
        lambda: plain.encode(numpy.random.get_state(legacy=False)),
        lambda: generator_memory.of_numpy(drawing),
        lambda: drawing._bit_generator,
    )


def _of_generator(generator: Any) -> _Source:
    """The source of one generator object; `places.is_generator` lists the kinds."""
    if isinstance(generator, torch.Generator):
        return _Source(
            lambda: attempt.bytes_of(generator.get_state()),
            lambda: generator_memory.of_torch(generator),
            lambda: getattr(generator, "_cdata", None),
        )
    if isinstance(generator, random.Random):
        return _Source(lambda: plain.encode(generator.getstate()))
    if hasattr(generator, "bit_generator"):  # numpy.random.Generator
        return _Source(lambda: plain.encode(generator.bit_generator.state))
    # numpy.random.RandomState, and what is recorded as if it were one (accelerator.py)
    return _Source(lambda: plain.encode(generator.get_state(legacy=False)))


def _put(generator: Any, state: bytes) -> None:
    if isinstance(generator, torch.Generator):
        generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    elif isinstance(generator, random.Random):
        generator.setstate(plain.decode(state))
    elif hasattr(generator, "bit_generator"):
        generator.bit_generator.state = plain.decode(state)
    else:
        generator.set_state(plain.decode(state))

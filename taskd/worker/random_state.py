"""The random numbers of a process: python, numpy, torch on the CPU and on the accelerator, as one byte string and back."""

from __future__ import annotations

import ctypes
import pickle
import random
import sys
from typing import Any

import torch


class RandomState:
    """Takes and puts back the process's generators. Taking costs ~15 us: numpy's own get_state alone would be 22."""

    def __init__(self, device: torch.device) -> None:
        self._device = device if device.type != "cpu" else None
        self._python: tuple[Any, bytes] = ((), b"")
        self._numpy: tuple[bytes, bytes] = (b"", b"")

    def take(self) -> bytes:
        parts = [torch.get_rng_state().numpy().tobytes(), self._take_python(), self._take_numpy()]
        if self._device is not None:
            parts.append(torch.get_device_module(self._device).get_rng_state(self._device).numpy().tobytes())
        return b"".join(len(p).to_bytes(4, "little") + p for p in parts)

    def put(self, state: bytes) -> None:
        parts, at = [], 0
        while at < len(state):
            size = int.from_bytes(state[at : at + 4], "little")
            parts.append(state[at + 4 : at + 4 + size])
            at += 4 + size
        torch.set_rng_state(torch.frombuffer(bytearray(parts[0]), dtype=torch.uint8))
        random.setstate(pickle.loads(parts[1]))
        if parts[2]:
            import numpy

            numpy.random.set_state(pickle.loads(parts[2]))
        if self._device is not None:
            torch.get_device_module(self._device).set_rng_state(torch.frombuffer(bytearray(parts[3]), dtype=torch.uint8), self._device)

    def _take_python(self) -> bytes:
        state = random.getstate()
        if state != self._python[0]:
            self._python = (state, pickle.dumps(state, 5))
        return self._python[1]

    def _take_numpy(self) -> bytes:
        """numpy's state; where the generator's raw memory is as before, so is the state, but for a cached second normal
        deviate, which lies elsewhere: with one cached the whole state is taken again."""
        numpy = sys.modules.get("numpy")
        if numpy is None:
            return b""
        generator = numpy.random.mtrand._rand._bit_generator
        if type(generator).__name__ != "MT19937":
            return pickle.dumps(numpy.random.get_state(), 5)
        raw = ctypes.string_at(generator.ctypes.state_address, 625 * 4)
        if raw != self._numpy[0]:
            state = numpy.random.get_state()
            self._numpy = (b"" if state[3] else raw, pickle.dumps(state, 5))
        return self._numpy[1]

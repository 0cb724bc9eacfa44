"""Locates the state of random number generators in this process's memory, so that a draw shows
without a call.

python, numpy and torch guarantee none of this. So each place is compared with the generator's own
answer before use; if it is not found, the result is None and the generator is asked each time.
"""

from __future__ import annotations

import ctypes
import random
import struct
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

Pieces = list[tuple[int, int]]  # (address, bytes)

_WORDS = 624  # of a Mersenne twister
_TWISTER = (_WORDS + 1) * 4  # bytes: the words, and an index before or behind them
_HEAD = object.__basicsize__

# torch's CPU generator: its words lie near the beginning of the object, seed and index just before
# them, and the normal deviates held in advance just behind
_SEARCHED, _BEFORE, _BEHIND = 104, 24, 32
# get_state() has one word in eight bytes each, behind seed, index and flag
_LEGACY = slice(24, 24 + 8 * _WORDS)


def of_python() -> Pieces | None:
    """The memory of `random`'s own generator: the index and the words behind the object's head,
    without gauss()'s deviate held in advance, `gauss_next`."""
    address = id(random._inst) + _HEAD
    words = struct.unpack(f"i{_WORDS}I", ctypes.string_at(address, _TWISTER))
    return [(address, _TWISTER)] if (*words[1:], words[0]) == random.getstate()[1] else None


def of_numpy(drawing: Any) -> Pieces | None:
    """The memory of a numpy.random.RandomState: its generator's, and its own, which holds the
    pointer to the generator and the second normal deviate."""
    generator = drawing._bit_generator
    if type(generator).__name__ != "MT19937" or not _deviate_lies_inside(type(drawing)):  # type: ignore[arg-type]
        return None
    return [(generator.ctypes.state_address, _TWISTER), _inside(drawing)]


def of_torch(generator: torch.Generator) -> Pieces | None:
    """The memory of a torch.Generator of the CPU."""
    offset = _words_of_torch()
    if offset is None or type(generator) is not torch.Generator or generator.device.type != "cpu":
        return None
    address = generator._cdata  # type: ignore[attr-defined]
    if ctypes.string_at(address + offset, 4 * _WORDS) != _words(generator):
        return None
    # the pointer too: the object could get another generator
    return [
        (id(generator) + _HEAD, 8),
        (address + offset - _BEFORE, _BEFORE + 4 * _WORDS + _BEHIND),
    ]


def _words(generator: torch.Generator) -> bytes:
    words = struct.unpack(f"{_WORDS}Q", generator.get_state().numpy().tobytes()[_LEGACY])
    return struct.pack(f"{_WORDS}I", *words)


@cache
def _words_of_torch() -> int | None:
    """The offset of the words in a generator; None if it is not certain."""
    trial = torch.Generator()
    trial.manual_seed(1)
    torch.rand(1, generator=trial)
    address = getattr(trial, "_cdata", None)
    if address is None or ctypes.c_uint64.from_address(id(trial) + _HEAD).value != address:
        return None
    memory = ctypes.string_at(address, _SEARCHED + 4 * _WORDS)
    offset = memory.find(_words(trial))
    if offset < _BEFORE:
        return None

    def present() -> bytes:
        return ctypes.string_at(address + offset - _BEFORE, _BEFORE + 4 * _WORDS + _BEHIND)

    # one of two deviates is kept for the next call, which draws nothing: only the kept one shows
    for kind in (torch.float32, torch.float64):
        for _ in range(3):
            before, asked = present(), trial.get_state()
            torch.randn(1, generator=trial, dtype=kind)
            if not torch.equal(trial.get_state(), asked) and present() == before:
                return None
    before = present()
    trial.manual_seed(2)
    return offset if present() != before else None


def _inside(thing: object) -> tuple[int, int]:
    """An object's memory behind its head."""
    return id(thing) + _HEAD, type(thing).__basicsize__ - _HEAD


@cache
def _deviate_lies_inside(kind: Callable[[int], Any]) -> bool:
    """Whether a numpy.random.RandomState keeps the second normal deviate, drawn in advance, in its
    own memory."""
    trial = kind(1)
    trial.normal()
    kept = ctypes.string_at(*_inside(trial))
    trial.normal()
    return ctypes.string_at(*_inside(trial)) != kept

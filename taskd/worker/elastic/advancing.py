"""Draws from a generator what another one has drawn.

What this rank draws outside the shares (a loader's seed in an evaluation, a sampled image), a rank
that is away would draw too, from its own numbers. How many were drawn shows in the states before
and after: a Mersenne Twister keeps its place among 624 numbers, and shuffles all of them after
these; Philox (accelerators) counts. What takes as many numbers as it happens to need
(`random.shuffle`, `numpy.random.choice`) might take another count there; that cannot be known.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any

import torch

from taskd.worker.state import plain

NUMBERS = 624  # between two shuffles
SHUFFLES = 2000  # looked for: some 20 ms; more numbers are a data set's
_TORCH = struct.Struct("<Qii")  # seed; numbers that are left; whether it was seeded
_PHILOX = struct.Struct("<QQ")  # seed, offset


class Unknown(Exception):
    """How the generator came from one state to the other is not known."""


def advanced(place: int, theirs: bytes, before: bytes, after: bytes) -> bytes:
    """`theirs`, after the same draws that led from `before` to `after`: states of the generator at
    `place` among those of state/random_state.py. Raises Unknown."""
    try:
        if place == 1:
            return _of_python(theirs, before, after)
        if place == 2:
            return _of_numpy(theirs, before, after)
        if len(theirs) == len(before) == len(after) == _PHILOX.size:
            return _of_philox(theirs, before, after)
        if len(theirs) == len(before) == len(after) == torch.Generator().get_state().numel():
            return _of_torch(theirs, before, after)
    except (plain.Unreadable, KeyError, TypeError, ValueError, IndexError) as error:
        raise Unknown from error
    raise Unknown


def _count(first: int, draw: Callable[[int], Any], arrived: Callable[[], bool]) -> int:
    """How many numbers `draw` must be asked for until `arrived`: `first`, or so many more that the
    place is the same again."""
    draw(first)
    for shuffles in range(SHUFFLES):
        if arrived():
            return first + shuffles * NUMBERS
        draw(NUMBERS)
    raise Unknown


def _of_torch(theirs: bytes, before: bytes, after: bytes) -> bytes:
    generator = torch.Generator()

    def put(state: bytes) -> None:
        generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))

    def take() -> bytes:
        return generator.get_state().numpy().tobytes()

    def draw(count: int) -> None:
        torch.empty(count, dtype=torch.int32).random_(generator=generator)

    (_, left, _), (_, rest, _) = _TORCH.unpack_from(before), _TORCH.unpack_from(after)
    put(before)
    count = _count((left - rest) % NUMBERS, draw, lambda: take() == after)
    put(theirs)
    draw(count)
    return take()


def _of_python(theirs: bytes, before: bytes, after: bytes) -> bytes:
    made = random.Random()

    def draw(count: int) -> None:
        if count:
            made.getrandbits(32 * count)

    begin, end = plain.decode(before), plain.decode(after)
    made.setstate(begin)
    count = _count((end[1][-1] - begin[1][-1]) % NUMBERS, draw, lambda: made.getstate() == end)
    made.setstate(plain.decode(theirs))
    draw(count)
    return plain.encode(made.getstate())


def _of_numpy(theirs: bytes, before: bytes, after: bytes) -> bytes:
    import numpy

    begin, end, own = plain.decode(before), plain.decode(after), plain.decode(theirs)
    kinds = {state["bit_generator"] for state in (begin, end, own)}
    if kinds != {"MT19937"} or begin["gauss"] != end["gauss"]:
        raise Unknown
    made = numpy.random.MT19937()

    def arrived() -> bool:
        state = made.state["state"]
        same = numpy.array_equal(state["key"], end["state"]["key"])
        return bool(same and state["pos"] == end["state"]["pos"])

    made.state = {"bit_generator": "MT19937", "state": begin["state"]}
    first = (end["state"]["pos"] - begin["state"]["pos"]) % NUMBERS
    count = _count(first, made.random_raw, arrived)
    made.state = {"bit_generator": "MT19937", "state": own["state"]}
    made.random_raw(count)
    return plain.encode({**own, "state": made.state["state"]})


def _of_philox(theirs: bytes, before: bytes, after: bytes) -> bytes:
    (seed, begin), (other, end) = _PHILOX.unpack(before), _PHILOX.unpack(after)
    own, offset = _PHILOX.unpack(theirs)
    if seed != other or end < begin:
        raise Unknown
    return _PHILOX.pack(own, offset + end - begin)

"""Numbers drawn outside the shares are drawn for ranks that are away, too."""

from __future__ import annotations

import random

import numpy
import pytest
import torch

from taskd.worker.elastic import advancing, private
from taskd.worker.state import plain, random_state
from taskd.worker.state.random_state import RandomState


def draw(count: int) -> None:
    torch.rand(count)
    torch.empty((), dtype=torch.int64).random_()  # as a DataLoader's iterator
    torch.randperm(max(count, 1))
    [random.random() for _ in range(count + 1)]
    numpy.random.rand(count)


def seed(number: int) -> None:
    torch.manual_seed(number)
    random.seed(number)
    numpy.random.seed(number)


@pytest.mark.parametrize("count", [0, 1, 7, 623, 624, 5000])
def test_as_if_the_other_had_drawn(count):
    states = RandomState(torch.device("cpu"))
    torch.rand(3), numpy.random.rand(3)
    found = []
    for number in (1, 2):
        seed(number)
        before = states.snapshot()
        draw(count)
        found.append((before, states.snapshot()))
    (before, after), (theirs, wanted) = found
    apart = private.of_random(lambda text: pytest.fail(text))
    apart.settle(before, theirs)
    assert apart.now(before) == theirs
    states.restore(apart.now(after))
    got = torch.rand(2).tolist(), random.random(), numpy.random.rand()
    states.restore(wanted)
    assert got == (torch.rand(2).tolist(), random.random(), numpy.random.rand())
    assert apart.now(before) == theirs  # from the same place each time


def test_what_cannot_be_followed_is_named():
    states = RandomState(torch.device("cpu"))
    seed(1)
    before = states.snapshot()
    torch.randn(1)  # keeps a second number for the next call
    random.seed(9)
    after = states.snapshot()
    seed(2)
    theirs = states.snapshot()
    told = []
    apart = private.of_random(told.append)
    apart.settle(before, theirs)
    assert random_state.split(apart.now(after))[:2] == random_state.split(theirs)[:2]
    assert told == ["torch's generator", "python's generator"]


def test_generators_of_accelerators_count():
    def state(seed: int, offset: int) -> bytes:
        return advancing._PHILOX.pack(seed, offset)

    found = advancing.advanced(3, state(5, 40), state(4, 8), state(4, 20))
    assert found == state(5, 52)
    with pytest.raises(advancing.Unknown):
        advancing.advanced(3, state(5, 40), state(4, 8), state(6, 20))


def test_states_are_as_the_record_has_them():
    assert plain.decode(plain.encode(random.getstate())) == random.getstate()

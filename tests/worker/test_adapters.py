"""Plain things that protect() takes."""

from __future__ import annotations

from collections import OrderedDict, deque

import numpy
import pytest
import torch

from taskd.worker.state import plain
from taskd.worker.state.adapters import adapt
from taskd.worker.state.training_state import TrainingState

PLAIN = {
    "dict": ({"best": 1.5, "seen": [1, 2]}, lambda v: v.update(best=2.5, more=torch.ones(2))),
    "ordered": (OrderedDict(a=1), lambda v: v.update(b=2)),
    "list": ([1, "a", (2, 3)], lambda v: v.append(4)),
    "deque": (deque([1, 2], maxlen=3), lambda v: v.extend([3, 4])),
    "set": ({1, 2}, lambda v: v.add(3)),
    "bytes": (bytearray(b"ab"), lambda v: v.extend(b"c")),
}


@pytest.mark.parametrize("kind", PLAIN)
def test_containers_are_put_back_in_place(kind):
    value, change = PLAIN[kind]
    adapted = adapt(value)
    saved, copy = plain.encode(adapted.state_dict()), type(value)(value)
    change(value)
    assert value != copy
    adapted.load_state_dict(plain.decode(saved))
    assert value == copy and type(value) is type(copy)


def test_tensors_and_arrays_are_put_back_in_place():
    for value in (torch.arange(4.0), torch.nn.Parameter(torch.ones(2, 2)), numpy.arange(4.0)):
        adapted, copy = adapt(value), value * 1
        saved = plain.encode(adapted.state_dict())
        with torch.no_grad():
            value += 1
        adapted.load_state_dict(plain.decode(saved))
        assert bool((value == copy).all())
    with pytest.raises(RuntimeError, match=r"shape \(3,\), here it is \(4,\)"):
        adapt(torch.zeros(4)).load_state_dict(torch.zeros(3))


def test_model_averagers_count_their_steps():
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

    averager = PeriodicModelAverager(4, process_group=object())
    averager.step = 7
    saved = plain.encode(adapt(averager).state_dict())
    averager.step = 0
    adapt(averager).load_state_dict(plain.decode(saved))
    assert averager.step == 7


def test_what_is_not_known_is_left_to_others():
    assert adapt(object()) is None and adapt(3) is None and adapt(numpy.array([object()])) is None


def test_an_object_that_says_when_it_has_changed_is_asked_then_alone():
    class Slow:
        state_version = value = asked = 0

        def state_dict(self):
            self.asked += 1
            return {"value": self.value}

        def load_state_dict(self, state):
            self.value = state["value"]

    slow, plainly = Slow(), Slow()
    plainly.state_version = None
    state = TrainingState({"model": torch.nn.Linear(1, 1), "slow": slow, "plainly": plainly})
    first = state.parts.take()
    again = state.parts.take()
    assert all(again[name] is content for name, content in first.items())
    assert (slow.asked, plainly.asked) == (1, 2)
    slow.value = slow.state_version = 1
    second = state.parts.take()
    assert second["object slow"] != first["object slow"] and slow.asked == 2
    state.parts.put(first)
    assert slow.value == 0 and state.parts.take() == first and slow.asked == 3

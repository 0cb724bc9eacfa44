"""The list of a rank's parts: what is taken, kept, put back and let go of."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from taskd.cython_api.part import unchanged, whole
from taskd.worker.state.gradients import Gradients
from taskd.worker.state.part import NOTHING, Content, tensors
from taskd.worker.state.random_state import RandomState
from taskd.worker.state.training_state import TrainingState


class Counter:
    def __init__(self, value: int = 0) -> None:
        self.value = value

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


def made(**more) -> tuple[TrainingState, Gradients]:
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    state = TrainingState({"model": net, "optimizer": optimizer, **more})
    gradients = Gradients([optimizer])
    gradients.watch(state.parameters())
    state.parts.add(gradients, RandomState(torch.device("cpu")))
    return state, gradients


def train(state: TrainingState, update: bool = True) -> None:
    state.modules["model"](torch.randn(4, 2)).square().sum().backward()
    if update:
        state.optimizers["optimizer"].step()


def test_what_has_not_changed_is_the_same_object_and_what_has_is_found():
    state, _ = made(counter=Counter())
    before = state.parts.take()
    again = state.parts.take()
    assert all(again[name] is content for name, content in before.items())
    state.small["counter"].value = 1
    now = state.parts.take()
    changed = {name for name, content in now.items() if content is not before[name]}
    assert changed == {"object counter"} and not unchanged(now, before)


def test_each_part_comes_back():
    state, gradients = made(counter=Counter())
    train(state, update=False)
    kept = {name: content.kept() for name, content in state.parts.take().items()}
    train(state)
    state.small["counter"].value = 3
    state.optimizers["optimizer"].param_groups[0]["lr"] = 7.0
    state.modules["model"].eval()
    gradients.abandon()
    assert set(state.parts.differing(kept)) == {
        *("buffers", "gradients", "modes", "param_groups", "counter", "random numbers"),
    }
    state.parts.put(kept)
    assert state.parts.differing(kept) == []


def test_tensors_alone_come_back():
    state, _ = made(counter=Counter(1))
    kept = {name: content.kept() for name, content in state.parts.take().items()}
    train(state)
    state.small["counter"].value = 2
    state.parts.put(kept, only=tensors)
    assert state.small["counter"].value == 2 and "buffers" not in state.parts.differing(kept)


def test_an_object_of_a_record_that_comes_later_and_one_that_does_not():
    state, _ = made()
    state.parts.put({"object (later)": Content(b"\x81\xa5value\x05")})
    state.add("(later)", later := Counter())
    assert later.value == 5
    with pytest.raises(RuntimeError, match="the record has object mine, which this process"):
        state.parts.put({"object mine": NOTHING})


def test_what_an_attempt_leaves_is_taken_once_it_is_committed():
    state, gradients = made()
    train(state, update=False)
    early = state.parts.take(late=False)
    assert early["gradients"] is NOTHING
    state.parts.take_late(early, 1)
    assert early["gradients"] is gradients.content and whole(early)


def test_no_tensor_is_held_while_a_step_goes_on():
    """A copy of the gradients would stay until the step has ended."""
    state, _ = made()
    train(state, update=False)
    taken = state.parts.take()
    gradient = weakref.ref(next(state.parameters()).grad)
    del taken
    state.parts.let_go()
    state.optimizers["optimizer"].zero_grad()
    gc.collect()
    assert gradient() is None

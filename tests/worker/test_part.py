"""The list of a rank's parts: what is taken, kept, put back and let go of."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from taskd.cython_api.part import unchanged
from taskd.worker.state.given import UnsupportedState
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
    assert early["gradients"] is gradients.content


def test_no_tensor_is_held_while_a_step_goes_on():
    """A copy of the gradients would stay until the step has ended."""
    state, _ = made()
    train(state, update=False)
    gradient = weakref.ref(next(state.parameters()).grad)
    kept = state.parts.take()["gradients"].kept()
    state.parts.let_go()
    state.optimizers["optimizer"].zero_grad()
    gc.collect()
    assert gradient() is None and kept.memory


def test_a_look_at_an_optimizer_leaves_it_as_it_is():
    """LBFGS has its state, numbers among it, at its first parameter alone."""
    net = torch.nn.Linear(2, 2)
    optimizer = torch.optim.LBFGS(net.parameters())
    state = TrainingState({"model": net, "optimizer": optimizer})
    optimizer.state[net.weight]["n_iter"] = 3
    state.parts.arrange()
    kept = state.parts.take()
    assert "optimizer values" in kept and list(optimizer.state) == [net.weight]
    optimizer.state[net.weight]["n_iter"] = 4
    state.parts.put(kept)
    assert optimizer.state[net.weight]["n_iter"] == 3


@pytest.mark.parametrize("new", [False, True])
def test_what_an_optimizer_keeps_for_no_parameter(new):
    """A count, and a dict that the steps change in place; a replacement has neither at first."""

    def made():
        net = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(net.parameters())
        return optimizer, TrainingState({"model": net, "optimizer": optimizer})

    optimizer, state = made()
    optimizer.state["total"], optimizer.state["norms"] = 3, {"k": torch.ones(2), "n": 1}
    assert state.changed() and state.refresh()
    kept = state.parts.take()
    norms = optimizer.state["norms"]
    optimizer.state["total"], norms["n"] = 4, 2
    norms["k"] += 1
    optimizer.state["later"] = 1.0
    assert state.parts.take()["optimizers' own"] != kept["optimizers' own"]
    if new:
        optimizer, state = made()
        norms = {"k": torch.ones(2), "n": 1}
    state.parts.put(kept)
    there = optimizer.state["norms"]
    assert set(optimizer.state) == {"total", "norms"} and optimizer.state["total"] == 3
    assert there["n"] == 1 and there["k"].equal(torch.ones(2)) and (new or there is norms)
    assert state.parts.take()["optimizers' own"].data == kept["optimizers' own"].data


def test_a_state_of_a_parameter_that_is_no_dict_is_refused():
    net = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(net.parameters())
    optimizer.state[net.weight] = [1.0]
    with pytest.raises(UnsupportedState, match="optimizer has a list as its state of a parameter"):
        TrainingState({"model": net, "optimizer": optimizer})


def test_one_element_with_a_stride_is_recorded():
    net = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(net.parameters())
    optimizer.state[net.weight]["d"] = torch.zeros(22)[::22]
    state = TrainingState({"model": net, "optimizer": optimizer})
    assert sorted(row.numel() for row in state.replicated) == [4, 8, 16]


def test_an_object_that_could_not_be_taken_is_asked_again():
    class Versioned(Counter):
        state_version = 1

        def state_dict(self):
            if self.value < 0:
                raise ValueError("not now")
            return {"value": self.value}

    state, _ = made(counter=(counter := Versioned()))
    before = state.parts.take()
    counter.value, counter.state_version = -1, 2
    for _ in range(2):
        with pytest.raises(ValueError, match="not now"):
            state.parts.take()
    counter.value = 2
    assert state.parts.take()["object counter"] != before["object counter"]


def test_values_are_the_same_however_they_lie_in_memory():
    class Copies(Counter):
        def __init__(self, table: torch.Tensor) -> None:
            self.table = table

        def state_dict(self):
            return {"table": self.table}

        def load_state_dict(self, state):
            self.table.copy_(state["table"])

    table = torch.arange(6.0).view(2, 3)
    kept = made(mine=Copies(table.t().contiguous().t()))[0].parts.take()
    state, _ = made(mine=(mine := Copies(torch.zeros(2, 3))))
    state.parts.put({"object mine": kept["object mine"]})
    assert torch.equal(mine.table, table)
    assert state.parts.differing({"object mine": kept["object mine"]}) == []

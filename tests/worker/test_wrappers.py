"""Wrappers of optimizers are unwrapped where they are known, else refused by name, as are tensors
that are not what they seem."""

from __future__ import annotations

import pytest
import torch

from taskd.worker.state.training_state import NotProtectable, TrainingState, UnsupportedState
from taskd.worker.state.wrappers import KNOWN, unwrap


def of(module: str, name: str, **attributes):
    """An object of a class of that name, as a library's that is not installed here."""
    bases = (torch.optim.Optimizer,) if "Optimizer" in name else ()
    kind = type(
        name,
        bases,
        {"__module__": module, "__init__": lambda self: None, "__setattr__": object.__setattr__},
    )
    made = kind()
    vars(made).update(attributes)
    return made


@pytest.fixture
def net() -> torch.nn.Linear:
    return torch.nn.Linear(2, 2)


@pytest.fixture
def optimizer(net) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.1)


@pytest.mark.parametrize("known", sorted(KNOWN))
def test_known_wrappers_are_opened(optimizer, known):
    assert unwrap(of(*known, **{KNOWN[known]: optimizer})) is optimizer
    twice = of(*known, **{KNOWN[known]: of(*known, **{KNOWN[known]: optimizer})})
    assert unwrap(twice) is optimizer


def test_a_wrapper_that_nobody_knows_is_refused_by_name(net, optimizer):
    wrapper = of("lab.tricks", "BigOptimizer", inner=optimizer)
    with pytest.raises(
        NotProtectable, match="optimizer: lab.tricks.BigOptimizer is not built like a torch"
    ):
        TrainingState({"model": net, "optimizer": wrapper})

    class Engine:  # which is no optimizer
        param_groups = optimizer.param_groups

        def __init__(self) -> None:
            self.inner = optimizer

        def step(self) -> None:
            pass

    with pytest.raises(TypeError, match="wraps an optimizer .its attribute inner. and is none"):
        unwrap(Engine())


def test_an_optimizer_around_others_is_protected_with_them(net, optimizer):
    class Lookahead(torch.optim.SGD):
        pass

    wrapping = Lookahead(net.parameters(), lr=0.1)
    wrapping.inner, wrapping.more = optimizer, [torch.optim.Adam(net.parameters())]
    state = TrainingState({"model": net, "given": wrapping, "too": optimizer})
    assert list(state.optimizers) == ["given", "given.inner", "given.more[0]"]


def test_ordinary_things_are_what_they_are(net, optimizer):
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    for value in (net, optimizer, scheduler, [optimizer], torch.amp.GradScaler("cpu")):
        assert unwrap(value) is value


class Sharded(torch.Tensor):
    pass


@pytest.mark.parametrize(
    ("tensor", "why"),
    [
        (torch.ones(2).as_subclass(Sharded), "weight is a Sharded: only plain and sharded"),
        (torch.eye(2).to_sparse(), "of layout torch.sparse_coo"),
        (torch.empty(2, device="meta"), "on the meta device"),
    ],
)
def test_tensors_that_cannot_be_brought_back_are_named(tensor, why):
    module = torch.nn.Module()
    module.register_buffer("weight", tensor)
    with pytest.raises(NotProtectable, match=why):
        TrainingState({"model": module})


def test_a_lazy_module_is_named():
    with pytest.raises(NotProtectable, match="not initialized yet: run one forward"):
        TrainingState({"model": torch.nn.LazyLinear(2)})


def test_values_that_cannot_be_recorded_are_named(net):
    class Kept:
        def state_dict(self):
            return {"history": [1, {"f": self}]}

        def load_state_dict(self, state):
            pass

    state = TrainingState({"model": net, "mine": Kept()})
    with pytest.raises(
        UnsupportedState,
        match=r"protect\(mine=...\): its state_dict\(\) has a .*Kept at \['history'\]\[1\]\['f'\]",
    ):
        state.parts.take()

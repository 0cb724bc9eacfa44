"""How long a rank waits for the others: from its own last gradient to its update."""

from __future__ import annotations

import time

import pytest
import torch

from taskd.cython_api import slot
from taskd.cython_api.page import Page
from taskd.devices import Cpu
from taskd.profiling.last_gradient import LAST
from taskd.worker.training.waiting import Waiting

CPU = Cpu(torch.device("cpu"))


@pytest.fixture
def page(tmp_path):
    with Page.create(tmp_path / "page", 1) as page:
        slot.attach(page.path, 0)
        yield page
        slot.detach()


def hooks(model):
    return sum(len(p._post_accumulate_grad_hooks or ()) for p in model.parameters())


def step(model, waiting, wait=0.0):
    waiting.clock.at = 0
    model(torch.ones(2, 3)).sum().backward()
    time.sleep(wait)
    waiting.updates()


def test_the_wait_is_from_the_last_gradient_to_the_update(page):
    model = torch.nn.Sequential(*[torch.nn.Linear(3, 3) for _ in range(4)])
    model[2].bias.requires_grad_(False)
    waiting = Waiting([model], CPU)
    assert hooks(model) == 7
    step(model, waiting)
    assert hooks(model) == LAST  # of the parameters whose gradients come last
    assert model[0].bias._post_accumulate_grad_hooks and model[0].weight._post_accumulate_grad_hooks
    before = page.read(0).waited_ns
    step(model, waiting, wait=0.05)
    assert page.read(0).waited_ns >= before + 50_000_000
    known = page.read(0).waited_ns
    waiting.updates()  # another optimizer: nothing new has been waited for
    waiting.clock.at = 0
    waiting.updates()  # an update without a backward
    assert page.read(0).waited_ns == known


def test_a_model_without_ddp_costs_nothing(page):
    waiting = Waiting([], CPU)
    waiting.clock.at = 0
    waiting.updates()
    assert page.read(0).waited_ns == 0

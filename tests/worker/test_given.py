"""The names of what is given to protect()."""

from __future__ import annotations

import torch

import taskd
from taskd.worker.state.given import named

HERE = object()


def test_unnamed_objects_have_the_names_of_the_callers_variables():
    model = torch.nn.Linear(1, 1)
    net = model
    local, module = {"net": net, "model": model, "x": 1}, {"HERE": HERE, "model": None}
    assert named((net, HERE), (local, module), {}) == {"net": net, "HERE": HERE}


def test_others_have_that_of_their_type():
    first, second = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    found = named((first, second, torch.nn.ReLU()), ({"model": object()},), {"linear_2": HERE})
    assert list(found) == ["linear_2", "linear", "linear_3", "relu"]
    assert found["linear"] is first and found["linear_3"] is second


def test_what_people_type():
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert not taskd.protect(model, optimizer).protected  # without a launcher
    assert not taskd.protect(model, optimizer=optimizer).protected

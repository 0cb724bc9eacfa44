"""Names of process groups that are the same on survivors and replacements."""

from __future__ import annotations

import pytest
import torch.distributed.distributed_c10d as c10d

from taskd.worker.communication import group_names


@pytest.fixture(autouse=True)
def torchs(monkeypatch):
    monkeypatch.setattr(c10d, "_process_group_name", c10d._process_group_name)


def names(held):
    """Of a process that already holds so many groups, in generation 3."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(c10d._world, "group_count", held)
        patch.setattr(type(c10d._world), "pg_names", {n: str(n) for n in range(held)})
        group_names.number_names(3)
        made = [([0, 1], False), ([0], True), ([0], True), ([1], True), ([0, 1], False)]
        return [c10d._process_group_name(ranks, hashed) for ranks, hashed in made]


def test_they_do_not_depend_on_the_groups_that_a_process_holds():
    survivor, replacement = names(held=5), names(held=0)
    assert survivor == replacement and len(set(survivor)) == len(survivor)


def test_each_generation_has_names_of_its_own():
    before = names(held=2)
    group_names.number_names(4)
    assert c10d._process_group_name([0], True) not in before

"""A replica's state that is not what a rank had is noticed after the restore."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from taskd.cython_api.attempt import Rows
from taskd.worker.state import replicas


def rows(count):
    return [torch.randint(0, 256, (size,), dtype=torch.uint8) for size in range(1, count * 37, 37)]


def test_what_a_rank_had_and_what_it_had_not():
    state = rows(40)
    for step in range(6):
        mark = Rows(state).mark(step)
        replicas.check(Rows([r.clone() for r in state]), mark, step)
        other = Rows([r ^ 1 for r in state])
        with pytest.raises(
            replicas.Differs, match=f"step {step} is not what this rank had.*LocalSGD"
        ):
            replicas.check(other, mark, step)
    assert Rows([]).mark(3) == 0


def test_every_tensor_has_its_turn():
    state = rows(40)
    for index in range(len(state)):
        other = [r.clone() for r in state]
        other[index][-1] ^= 1
        assert any(Rows(other).mark(step) != Rows(state).mark(step) for step in range(3))


@pytest.mark.parametrize("lost_on", [None, 0, 1])
def test_a_page_that_was_just_lost_is_no_difference(monkeypatch, lost_on):
    """What a rank with a lost page reads of it are zeros; it is about to be repaired. Found by a
    page of a parameter that was lost twice: the second time between the end of a step and its
    comparison, and the job ended."""
    mine = SimpleNamespace(
        replicated=rows(4), layout=lambda: 1, replicas=replicas.Replicas(), apart=[]
    )
    monkeypatch.setattr(replicas.damage, "spoiled", lambda: 2 if lost_on == 0 else 0)

    def gathered(values, present):
        other = values.clone()
        other[2 if len(values) == 7 else 1] += 1  # another content; another checksum of row 1
        if len(values) == 7:
            other[-1] = lost_on == 1
        return {0: values, 1: other}

    monkeypatch.setattr(replicas, "gather", gathered)
    found = replicas.compare(mine, 0, 0, (0, 1))
    assert (found is None) == (lost_on is not None)
    if found is not None:
        assert found.apart == [1]

"""A replica's state that is not what a rank had is noticed after the restore."""

from __future__ import annotations

import pytest
import torch

from taskd.cython_api.attempt import Rows
from taskd.worker import replicas


def rows(count):
    return [torch.randint(0, 256, (size,), dtype=torch.uint8) for size in range(1, count * 37, 37)]


def test_what_a_rank_had_and_what_it_had_not():
    state = rows(40)
    for step in range(6):
        mark = replicas.mark(Rows(state), step)
        replicas.check(Rows([r.clone() for r in state]), mark, step)
        other = Rows([r ^ 1 for r in state])
        with pytest.raises(
            replicas.Differs, match=f"step {step} is not what this rank had.*LocalSGD"
        ):
            replicas.check(other, mark, step)
    assert replicas.mark(Rows([]), 3) == 0


def test_every_tensor_has_its_turn():
    state = rows(40)
    for index in range(len(state)):
        other = [r.clone() for r in state]
        other[index][-1] ^= 1
        assert any(
            replicas.mark(Rows(other), step) != replicas.mark(Rows(state), step)
            for step in range(3)
        )

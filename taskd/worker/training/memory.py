"""The protected memory: its tensors, and the ranges in which a lost page is noticed."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import torch

from taskd.cython_api import damage
from taskd.worker.communication import comm_hooks
from taskd.worker.discovery import reach
from taskd.worker.repair.session import RepairSession
from taskd.worker.state import sharded

log = logging.getLogger("taskd.worker")


def tensors(session: RepairSession) -> Iterator[torch.Tensor]:
    """All that is recorded, or made again when a step is repeated."""
    state = session.state
    yield from (*state.replicated, *state.private)
    yield from (sharded.local(p.grad) for p in state.parameters() if p.grad is not None)
    if session.stripes is not None:
        yield from session.stripes.rows()
    yield from session.gradients.met()
    yield from comm_hooks.seen()
    yield from session.variables.tensors()
    held = [("", {**state.modules, **state.optimizers, **state.small})]
    yield from (tensor for _, tensor in reach.find(held, lambda kind: kind is torch.Tensor))


def lay_out(session: RepairSession) -> None:
    """Register the addresses of tensors and divide them into stripes, after tensors, or which of
    them are replicated, have changed."""
    state = session.state
    if session.device.device.type == "cpu":
        damage.register(
            damage.TENSORS,
            [(t.data_ptr(), t.numel()) for t in (*state.replicated, *state.private)],
        )
    if session.stripes is None:
        return
    session.stripes.absent = session.absent
    try:
        session.stripes.lay_out(state.replicated, state.replicas.local)
    except OSError as error:
        why = session.stripes.lack(state.replicated, state.replicas.local)
        log.warning(
            "no room for stripes (%s): a fault after the optimizer's update cannot be undone: %s",
            error.strerror,
            why,
        )
        session.stripes = None
        return
    damage.register(damage.SHARED, [session.stripes.region()])

"""The protected memory: its tensors, and the ranges in which a lost page is noticed."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Any

import torch

from taskd.cython_api import damage
from taskd.worker.communication import comm_hooks
from taskd.worker.discovery import reach
from taskd.worker.repair.session import RepairSession
from taskd.worker.state import sharded

log = logging.getLogger("taskd.worker")

# seconds after which a rank that had no room for its stripe asks again
AGAIN = 10.0


def tensors(session: RepairSession) -> Iterator[torch.Tensor]:
    """All that is recorded, or made again when a step is repeated."""
    state = session.state
    yield from contents(session)
    yield from _inside(state.modules)


def contents(session: RepairSession) -> Iterator[torch.Tensor]:
    """Those of them that are recorded whatever their version counters say."""
    state = session.state
    yield from (*state.replicated, *state.private)
    yield from (sharded.local(p.grad) for p in state.parameters() if p.grad is not None)
    if session.stripes is not None:
        yield from session.stripes.rows()
    yield from session.gradients.met()
    yield from comm_hooks.seen()
    yield from session.variables.tensors()
    yield from _inside({**state.optimizers, **state.small})
    for optimizer in state.optimizers.values():  # also in lists, as Shampoo and SOAP have them
        yield from _inside({str(i): held for i, held in enumerate(optimizer.state.values())})


def versions(session: RepairSession) -> list[int]:
    """The version counters of parameters, buffers and optimizers' state."""
    state = session.state
    found = [*state.parameters(), *(b for m in state.modules.values() for b in m.buffers())]
    for optimizer in state.optimizers.values():
        rows = [held for held in optimizer.state.values() if isinstance(held, dict)]
        found += (value for held in rows for value in held.values())
    local = [sharded.local(value) for value in found if isinstance(value, torch.Tensor)]
    return [tensor._version for tensor in local if not tensor.is_inference()]


def _inside(objects: dict[str, Any]) -> Iterator[torch.Tensor]:
    found = reach.find([("", objects)], lambda kind: kind is torch.Tensor)
    yield from (tensor for _, tensor in found)


def lay_out(session: RepairSession) -> None:
    """Register the addresses of tensors and divide them into stripes, after tensors, or which of
    them are replicated, have changed."""
    state = session.state
    if session.device.device.type == "cpu":
        damage.register(
            damage.TENSORS,
            [(t.data_ptr(), t.numel()) for t in (*state.replicated, *state.private)],
        )
    _lay_out_stripes(session)


def _lay_out_stripes(session: RepairSession) -> None:
    stripes, state = session.stripes, session.state
    if stripes is None:
        return
    stripes.absent = session.absent
    before, stripes.refused = stripes.refused, None
    try:
        stripes.lay_out(state.replicated, state.replicas.local, _growth(session))
    except OSError as error:
        stripes.refused = time.monotonic()
        if before is None:
            why = stripes.lack(state.replicated, state.replicas.local)
            text = "no room for stripes (%s): a fault after the optimizer's update cannot be undone"
            log.warning(f"{text}, until there is: %s", error.strerror, why)
        return
    if before is not None:
        log.warning("there is room for stripes now: the state is copied again")
    damage.register(damage.SHARED, stripes.regions())


def stripes_fit(session: RepairSession, step: int) -> bool:
    """Whether this rank can copy its stripe of `step`; where there was no room, look again now and
    then."""
    stripes = session.stripes
    if stripes is None:
        return False
    if stripes.refused is not None and time.monotonic() - stripes.refused > AGAIN:
        _lay_out_stripes(session)
    if not stripes.ready:
        stripes.outdated(step)
    return stripes.ready


def _growth(session: RepairSession) -> int:
    """Bytes that this process's first steps will take: gradients, and optimizer state of twice the
    parameters, as most optimizers have. Stripes must not take their room."""
    if not session.gradients.fresh or session.agent.incarnation:
        return 0  # a replacement takes what its predecessor had
    mine = 0
    having = {id(p) for o in session.state.optimizers.values() for p, s in o.state.items() if s}
    for parameter in session.state.parameters():
        here = sharded.local(parameter)
        if here.device.type == "cpu":
            size = here.numel() * here.element_size()
            mine += size * ((parameter.grad is None) + 2 * (id(parameter) not in having))
    return mine

"""Everything that a manager must know about a node, in one message."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskd.cython_api import slot
from taskd.messages import from_agent

if TYPE_CHECKING:
    from taskd.agent.agent import Agent
    from taskd.agent.ranks.model import Epoch


def agent_joined(agent: Agent, epoch: Epoch) -> from_agent.AgentJoined:
    ranks = list(epoch.ranks.values())
    failed = [r for r in ranks if r.failed]
    blank = [r for r in ranks if r.blank and not r.failed]
    waiting = [
        r for r in ranks if r.over is None and epoch.page.read(r.local).phase == slot.INTERRUPTED
    ]
    store, records = agent.addresses
    return from_agent.AgentJoined(
        node=agent.node,
        ranks=tuple(r.number for r in ranks),
        store=store,
        epoch=epoch.number,
        incarnations=tuple(r.incarnation for r in ranks),
        joined=tuple(r.number for r in ranks if r.joined),
        waiting=tuple(r.number for r in waiting) if epoch.protected else (),
        dead=tuple(r.number for r in failed),
        new=tuple(r.number for r in blank),
        ready=tuple(r.number for r in blank if r.ready),
        left=tuple(r.left for r in (*failed, *blank)),
        generation=epoch.generation if epoch.protected else 0,
        interruption=epoch.interruption,
        agent=agent.name,
        records=records,
        keepers=agent.keepers,
        keeps=agent.records.keeps() if agent.records is not None else (),
        released=epoch.released,
        moves_to=epoch.moves_to,
        former=epoch.former,
        moving=epoch.moving,
        handlers=any(r.handlers for r in ranks),
        switches=agent.switches,
        profile=agent.profile,
    )

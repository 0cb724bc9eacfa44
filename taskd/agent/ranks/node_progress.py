"""Where the ranks of the node are, from the state page, for the manager."""

from __future__ import annotations

from taskd.agent.ranks.model import Epoch
from taskd.cython_api import slot
from taskd.messages.from_agent import GONE, NodeProgress


def node_progress(epoch: Epoch) -> NodeProgress:
    steps, phases, usual = [], bytearray(), []
    for rank in epoch.ranks.values():
        view = epoch.page.read(rank.local)
        # what its predecessor left in the page does not count
        present = bool(view.attached) and view.incarnation == rank.incarnation
        steps.append(view.step if rank.over is None else max(view.step, rank.step))
        if rank.over is None:
            phases.append(view.phase if present else slot.SETUP)
        else:
            phases.append(slot.DONE if rank.over == "ended well" else GONE)
        usual.append(view.usual_ns // 1000)
    total = max((rank.total for rank in epoch.ranks.values()), default=0)
    return NodeProgress(tuple(steps), bytes(phases), tuple(usual), total)

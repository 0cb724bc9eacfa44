"""What a heartbeat says of a node's ranks, from the state page."""

from __future__ import annotations

from collections.abc import Collection
from itertools import chain

from msgspec import structs

from taskd.agent.ranks.model import Epoch
from taskd.cython_api import slot
from taskd.messages.node_progress import GONE, STOPPED, NodeProgress
from taskd.messages.values import ROOM


def node_progress(epoch: Epoch, stopped: Collection[int], now: float) -> NodeProgress:
    """The progress of the node's ranks, from the state page, for the manager. `stopped`: the local
    ranks that a signal has stopped."""
    steps, phases, came, pids = [], bytearray(), [], []
    ranks = list(epoch.ranks.values())
    views = [epoch.page.read(rank.local) for rank in ranks]
    for rank, view in zip(ranks, views, strict=True):
        # its predecessor's entries in the page do not count
        present = bool(view.attached) and view.incarnation == rank.incarnation
        steps.append(view.step if rank.over is None else max(view.step, rank.step))
        if rank.over is not None:
            phases.append(slot.DONE if rank.over == "ended well" else GONE)
        elif rank.local in stopped:
            phases.append(STOPPED)
        else:
            phases.append(view.phase if present else slot.SETUP)
        came.append(view.came_ns / 1e9)
        pids.append(0 if rank.over is not None else view.pid if present else rank.pid)
    devices = tuple(rank.device for rank in ranks)
    counted, counts = _counts(epoch)
    said = NodeProgress(
        tuple(steps),
        bytes(phases),
        tuple(view.usual_ns // 1000 for view in views),
        max((rank.total for rank in ranks), default=0),
        _times(epoch),
        waited=tuple(view.waited_ns // 1000 for view in views),
        pids=tuple(pids),
        incarnations=tuple(rank.incarnation for rank in ranks),
        devices=devices if any(devices) else (),
        memory=epoch.memory,
        counted=counted,
        counts=counts,
    )
    # one that is away has stopped where it was: the manager does not count it either
    here = [i for i, rank in enumerate(ranks) if not rank.away] or range(len(ranks))
    lowest = said.only(here).lowest
    last = max(came[i] for i in here if steps[i] == lowest)
    return structs.replace(said, age=max(now - last, 0.0) if last else 0.0)


def _counts(epoch: Epoch) -> tuple[tuple[int, int], tuple[int, ...]]:
    """What the node's ranks have given for those of other nodes, of the newest step: for each group
    what one of them has, as they compare it with each other."""
    newest = 0, 0
    found: dict[int, tuple[int, int, int]] = {}
    for rank in epoch.ranks.values():
        at, counts = epoch.page.marks(rank.local)
        if rank.over is not None or rank.away or at < newest:
            continue
        if at > newest:
            newest, found = at, {}
        for group, begun in zip(counts[::2], counts[1::2], strict=True):
            found.setdefault(group, (group, begun, rank.number))
    return newest, tuple(chain.from_iterable(found.values()))[: 3 * (ROOM // 3)]


def _times(epoch: Epoch) -> tuple[tuple[int, int], ...]:
    """Of the first rank: the ranks of a job wait for each other in every step."""
    first = next((r for r in epoch.ranks.values() if r.over is None), None)
    counts = epoch.page.times(first.local) if first is not None else ()
    return tuple((kind, count) for kind, count in enumerate(counts) if count)

"""Gathers the records of ranks that are away: for the ranks that stand in for them, and for the
processes with which they come back.

A rank that has just left has records of its own, on its node or with the node's keepers. For one
that another rank stands in for, they are nested in that rank's records (records/nested.py). What a
stand-in needs is put into files beside those of this node's ranks, and stays there: its first
record has it, too, and if its process is replaced before that, these files have it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from taskd.agent.copies.service import Records
from taskd.agent.ranks import shared_memory
from taskd.agent.ranks.model import Epoch
from taskd.core.job.snapshots import KINDS, SLOTS, START
from taskd.messages import between_agents, from_agent, to_agent
from taskd.messages.values import Source
from taskd.records import nested, sealed, store
from taskd.records.start import Start

log = logging.getLogger("taskd.agent")

Keeps = list[between_agents.Keep]


def gather(records: Records, sources: Sequence[Source], then: Callable[[Keeps], None]) -> None:
    """Fetch from all `sources`, and call `then` with what they have, in the thread of `records`."""
    waiting, found = {number for number, _, _ in sources}, Keeps()

    def arrived(source: int, keeps: Keeps | None) -> None:
        if keeps is None:
            log.error("the records of node %d cannot be fetched", source)
        found.extend(keeps or ())
        waiting.discard(source)
        if not waiting:
            then(found)

    if not sources:
        then(found)
    for number, ranks, addresses in sources:
        records.fetch(number, ranks, addresses, _from(number, arrived))


def _from(number: int, arrived: Callable[[int, Keeps | None], None]) -> Callable[[Any], None]:
    return lambda keeps: arrived(number, keeps)


def pick(directory: Path, wanted: Collection[int], keeps: Iterable[between_agents.Keep]) -> Keeps:
    """The records of the ranks `wanted` in `keeps`, their own and those nested in others', the
    newest last. `directory`: has the job's key."""
    best: dict[tuple[int, int, bool], between_agents.Keep] = {}

    def add(keep: between_agents.Keep) -> None:
        key = keep.rank, keep.step, keep.kind == START
        if keep.rank in wanted and (key not in best or keep.kind > best[key].kind):
            best[key] = keep

    for keep in keeps:
        add(keep)
        if keep.kind not in KINDS:
            continue
        try:
            seal = sealed.seal_of(directory, keep.rank)
            inside = nested.within(keep.payload, seal, keep.step)
        except sealed.BadRecord as error:
            log.error("rank %d: its record of step %d is not used: %s", keep.rank, keep.step, error)
            continue
        for rank, record in inside.items():
            add(_keep(keep.job, keep.node, rank, keep.step, keep.kind, record))
    return sorted(best.values(), key=lambda keep: keep.step)


def take(
    order: to_agent.TakeRecords,
    epoch: Epoch,
    records: Records | None,
    report: Callable[[Any], None],
) -> None:
    """Put the records of the ranks that are away where this node's ranks find them. `report`: to
    the manager, from any thread."""
    here = _here(order, epoch)
    others = [source for source in order.sources if source[0] != order.node]

    def put(found: Keeps) -> None:
        left, why = [], ""
        try:
            keeps = pick(epoch.directory, order.away, [*here, *found])
            _hold(epoch, order.away)
            for rank in order.away:
                _write(epoch.directory, rank, [keep for keep in keeps if keep.rank == rank])
                left.append(store.left_behind(epoch.directory, store.away(rank), rank))
        except OSError as error:
            left, why = [None] * len(order.away), f"{error} in {epoch.directory}"
            log.error("the records of ranks %s cannot be put in place: %s", order.away, why)
        told = order.node, order.interruption, order.away, tuple(left), why
        report(from_agent.RecordsTaken(*told))

    if records is not None:
        gather(records, others, put)
    else:
        put(Keeps())


def _hold(epoch: Epoch, ranks: Iterable[int]) -> None:
    """Have memory for the records of these ranks, as for those of the node's own."""
    if epoch.held and not epoch.dropped:
        names = (name for rank in ranks for name in store.names(store.away(rank), stripes=False))
        fresh = [name for name in names if not os.path.lexists(epoch.directory / name)]
        epoch.held += shared_memory.hold(epoch.directory, fresh)


def _here(order: to_agent.TakeRecords, epoch: Epoch) -> Keeps:
    """The records on this node that may have those that are asked for."""
    wanted = {r for source, ranks, _ in order.sources if source == order.node for r in ranks}
    ours = [r for r in epoch.ranks.values() if r.number in wanted]
    files: list[tuple[int | str, int]] = [(r.local, r.number) for r in ours]
    return of_files(epoch.directory, [*files, *((store.away(r), r) for r in order.away)])


def of_files(directory: Path, files: Iterable[tuple[int | str, int]]) -> Keeps:
    """What is in these files, each named by its local rank (or store.away) and its rank."""
    found = Keeps()
    for local, rank in files:
        entries = store.Entries(directory, local, rank)
        for step in entries.all():
            if (kept := entries.record(step)) is not None:
                found.append(_keep("", 0, rank, step, *kept))
        if (begun := Start(directory, local, rank).record()) is not None:
            found.append(_keep("", 0, rank, 0, START, begun))
    return found


def _keep(job: str, node: int, rank: int, step: int, kind: int, data: bytes) -> between_agents.Keep:
    return between_agents.Keep(job, node, rank, 0, step, kind, False, data)


def _write(directory: Path, rank: int, keeps: Keeps) -> None:
    """Write a rank's newest records. Raises OSError."""
    local, records = store.away(rank), [keep for keep in keeps if keep.kind != START][-SLOTS:]
    for keep in keeps:
        if keep.kind == START:
            try:
                Start(directory, local, rank).put(keep.payload)
            except sealed.BadRecord as error:
                log.error("rank %d: the record of its start is not used: %s", rank, error)
    store.forget(directory, local)
    entries = store.Entries(directory, local, rank)
    for keep in records:
        try:
            entries.seal.check(keep.payload, keep.step)
        except sealed.BadRecord as error:
            log.error("rank %d: a record of step %d is not used: %s", rank, keep.step, error)
            continue
        entries.write(keep.step, keep.kind, [keep.payload])

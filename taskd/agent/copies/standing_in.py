"""Takes the records of ranks that are away, for the ranks of this node that stand in for them.

A rank that has just left has records of its own, here or with its node's keepers. For one that
another rank has stood in for, they are nested in that rank's records (records/nested.py). All that
is found is put into files beside those of this node's ranks, and stays there: the stand-in's first
record has it, too, and if the stand-in's process is replaced before that, these files have it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from taskd.agent.copies.service import Records
from taskd.agent.ranks.model import Epoch
from taskd.core.snapshots import KINDS, SLOTS, START
from taskd.messages import between_agents, from_agent, to_agent
from taskd.records import nested, sealed, store
from taskd.records.start import Start

log = logging.getLogger("taskd.agent")


@dataclass
class _Found:
    """What is known of one rank. `records`: by step, kind and the sealed record."""

    records: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    start: bytes | None = None

    def add(self, step: int, kind: int, record: bytes) -> None:
        if step not in self.records or kind > self.records[step][0]:
            self.records[step] = kind, record


class StandingIn:
    """`report`: to the manager, from any thread."""

    def __init__(self, job: str, report: Callable[[Any], None]) -> None:
        self._job, self._report = job, report

    def take(
        self, order: to_agent.TakeRecords, node: int, epoch: Epoch, records: Records | None
    ) -> None:
        """Carry out the order. Called by the agent's thread; ends in that of `records`."""
        waiting = {source for source, _, _ in order.sources if source != node}
        keeps = self._here(epoch, node, order)

        def arrived(source: int, found: list[between_agents.Keep] | None) -> None:
            if found is None:
                log.error("the records of node %d cannot be fetched", source)
            keeps.extend(found or [])
            waiting.discard(source)
            if not waiting:
                self._put(order, epoch, keeps)

        if not waiting:
            self._put(order, epoch, keeps)
            return
        assert records is not None
        for source, ranks, addresses in order.sources:
            if source != node:
                then = _then(arrived, source)
                records.fetch(source, ranks, addresses, then)

    def _here(
        self, epoch: Epoch, node: int, order: to_agent.TakeRecords
    ) -> list[between_agents.Keep]:
        """The records of this node that may have those that are asked for."""
        wanted = {r for source, ranks, _ in order.sources if source == node for r in ranks}
        ours = [r for r in epoch.ranks.values() if r.number in wanted]
        files: list[tuple[int | str, int]] = [(r.local, r.number) for r in ours]
        files += [(store.away(rank), rank) for rank in order.away]
        found = []
        for local, rank in files:
            entries = store.Entries(epoch.directory, local, rank)
            for step in entries.all():
                if (kept := entries.read(step)) is not None:
                    found.append(_keep(self._job, node, rank, step, *kept))
            if (begun := Start(epoch.directory, local, rank).record()) is not None:
                found.append(_keep(self._job, node, rank, 0, START, begun))
        return found

    def _put(
        self, order: to_agent.TakeRecords, epoch: Epoch, keeps: Iterable[between_agents.Keep]
    ) -> None:
        """Put what was found into files, and report what the ranks have left."""
        left = []
        try:
            found = _sort(epoch, order.away, keeps)
            for rank, of in found.items():
                _write(epoch, rank, of)
            for rank in order.away:
                left.append(store.left_behind(epoch.directory, store.away(rank), rank))
        except OSError as error:
            log.error("records of ranks %s cannot be put in place: %s", order.away, error)
            left = [None] * len(order.away)
        self._report(
            from_agent.RecordsTaken(order.node, order.interruption, order.away, tuple(left))
        )


def _then(
    arrived: Callable[[int, list[between_agents.Keep] | None], None], source: int
) -> Callable[[list[between_agents.Keep] | None], None]:
    return lambda found: arrived(source, found)


def _keep(job: str, node: int, rank: int, step: int, kind: int, data: bytes) -> between_agents.Keep:
    return between_agents.Keep(job, node, rank, 0, step, kind, False, data)


def _sort(
    epoch: Epoch, away: Iterable[int], keeps: Iterable[between_agents.Keep]
) -> dict[int, _Found]:
    """What there is of each rank that is away, its own records and those nested in others'."""
    found = {rank: _Found() for rank in away}
    for keep in keeps:
        if keep.kind == START:
            if keep.rank in found:
                found[keep.rank].start = keep.payload
            continue
        if keep.kind not in KINDS:
            continue
        if keep.rank in found:
            found[keep.rank].add(keep.step, keep.kind, keep.payload)
        try:
            seal = sealed.seal_of(epoch.directory, keep.rank)
            inside = nested.within(keep.payload, seal, keep.step)
        except sealed.BadRecord as error:
            log.error("rank %d: its record of step %d is not used: %s", keep.rank, keep.step, error)
            continue
        for rank, record in inside.items():
            if rank in found:
                found[rank].add(keep.step, keep.kind, record)
    return found


def _write(epoch: Epoch, rank: int, found: _Found) -> None:
    """Write a rank's newest records. Raises OSError."""
    local = store.away(rank)
    if found.start is not None:
        try:
            Start(epoch.directory, local, rank).put(found.start)
        except sealed.BadRecord as error:
            log.error("rank %d: the record of its start is not used: %s", rank, error)
    entries, kept = None, sorted(found.records.items())[-SLOTS:]
    store.forget(epoch.directory, local)
    for step, (kind, record) in kept:
        entries = entries or store.Entries(epoch.directory, local, rank)
        try:
            entries.seal.check(record, step)
        except sealed.BadRecord as error:
            log.error("rank %d: a record of step %d is not used: %s", rank, step, error)
            continue
        entries.write(step, kind, [record])

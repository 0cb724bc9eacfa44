"""An agent's part of a dump, in separate threads: a disk may be slow."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from taskd import settings
from taskd.agent.copies.service import Records
from taskd.agent.ranks import threads
from taskd.agent.ranks.model import Epoch
from taskd.core.job.snapshots import FINAL, KINDS
from taskd.messages import from_agent, to_agent
from taskd.records import dumps, nested, sealed
from taskd.records.store import Entries, away, away_ranks

log = logging.getLogger("taskd.agent")


def save_records(
    order: to_agent.SaveRecords,
    node: int,
    epoch: Epoch,
    records: Records | None,
    report: Callable[[Any], None],
) -> None:
    """Write the records of this node's ranks, including those without a process, those of the ranks
    that they stand in for, and the records of lost nodes kept here."""
    work = Path(settings.dump_path(os.environ)) / order.name

    def failed(why: str) -> None:
        log.error("the records of node %d cannot be saved: %s", node, why)
        dumps.discard(work)  # without them the state is not saved
        report(from_agent.RecordsSaved(node, order.interruption, (), why[:300], dump=order.dump))

    found: dict[int, tuple[int, bytes]] = {}  # by rank; the kind and the record
    try:
        for rank in epoch.ranks.values():
            entries = Entries(epoch.directory, rank.local, rank.number)
            if (kept := entries.read(order.step)) is not None:
                found[rank.number] = kept
                for inner, record in nested.within(kept[1], entries.seal, order.step).items():
                    found[inner] = kept[0], record
        for number in away_ranks(epoch.directory):
            kept = Entries(epoch.directory, away(number), number).read(order.step)
            if kept is not None:
                found.setdefault(number, kept)
    except (OSError, sealed.BadRecord) as error:
        failed(epoch.vanished or str(error))
        return
    for lost, keeper in order.lost:
        if keeper == node and records is not None:
            for keep in records.of(lost):
                if keep.step == order.step and keep.kind in KINDS:
                    found.setdefault(keep.rank, (min(keep.kind, FINAL), keep.payload))

    def write() -> None:
        if why := dumps.silent(work.parent):
            log.warning("%s: %s; saving the state waits for it", work.parent, why)
        try:
            # the job's seal is valid only within the job
            renewed = [
                (
                    rank,
                    kind,
                    sealed.seal_of(epoch.directory, rank).renew(
                        payload, order.step, dumps.seal_of(rank)
                    ),
                )
                for rank, (kind, payload) in found.items()
            ]
            files = dumps.write_records(work, renewed)
            ranks = tuple(sorted(found))
            told = node, order.interruption, tuple(files), "", ranks, order.dump
            report(from_agent.RecordsSaved(*told))
        except (OSError, sealed.BadRecord) as error:
            failed(epoch.vanished or str(error))

    threads.run("taskd-records-dump", write)


def seal(order: to_agent.Seal, report: Callable[[Any], None]) -> None:
    """Make a dump of everything written, or remove it if that fails."""
    work = Path(settings.dump_path(os.environ)) / order.name

    def finish() -> None:
        try:
            path = dumps.seal(work, order.step, order.world_size, order.files)
            log.warning(
                "the training state at the start of step %d is saved at %s", order.step, path
            )
            told = order.node, order.interruption, str(path.resolve()), "", order.dump
            report(from_agent.Sealed(*told))
            for old in dumps.clear(work.parent, settings.keep_dumps(os.environ), path):
                log.info("%s is removed: newer dumps exist (TASKD_KEEP_DUMPS)", old)
        except (OSError, dumps.BadDump) as error:
            log.error("%s cannot be sealed: %s", work, error)
            dumps.discard(work)
            failed = order.node, order.interruption, "", str(error)[:300], order.dump
            report(from_agent.Sealed(*failed))

    threads.run("taskd-seal", finish)

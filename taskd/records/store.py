"""A rank's files in the node's shared memory, in the agent's directory; they outlive the rank.

*Entries* are the private state of a rank (random numbers, loader position, buffers, small objects)
at the start of a step, three slots. *Stripes* are this rank's part of the node's copy of the
replicated training state, two slots. A slot's header is invalidated before a write and set last,
with a release store: a rank killed in the middle of a write leaves the other slots intact. The
worker writes; its replacement and the agent read. No torch here.
"""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

from taskd.core.job.snapshots import (
    FEW,
    FINAL,
    KINDS,
    LARGE,
    PROMOTED,
    SLOTS,
    STARTS,
    STRIPES,
    Snapshots,
)
from taskd.cython_api import attempt
from taskd.messages.values import Position
from taskd.records import sealed
from taskd.records.slots import Slot, SlotFile

log = logging.getLogger("taskd.records")

# A pipe in the directory through which a rank reports a record that it has written: local rank,
# kind, number of the record, step.
NOTES = "records"
NOTE = struct.Struct("<IIQQ")


class Entries:
    """The private records of one rank. A record that another process wrote counts only if its seal
    is valid: one that is damaged, forged or from another taskd does not exist, and the next source
    is used."""

    def __init__(self, directory: Path, local_rank: int | str, rank: int) -> None:
        """`local_rank`, or another name of the file: `away(rank)`. `rank`: the global one, named in
        the records. Raises FileNotFoundError if the agent has left no key."""
        self.directory = directory
        self._path = directory / f"entries-{local_rank}"
        self._marks = directory / f"marked-{local_rank}"
        self.seal = sealed.seal_of(directory, rank)
        # (slot, checksum) of refused records, each logged once
        self._refused: set[tuple[int, int]] = set()
        self.open()

    def open(self) -> None:
        """Look at the files again: the agent may have put other records there."""
        self._file = SlotFile(self._path, SLOTS)
        self._kept = Snapshots()  # as the files have it
        # slot -> step and checksum of a record whose seal is known to be valid
        self._trusted: dict[int, tuple[int, int]] = {}
        for slot in self._file.valid():
            self._kept.records[slot.index] = (slot.step, slot.kind)
        # Steps before this one have been committed for the script, by this process or one before.
        # Records alone have come from another node: the steps before them had been.
        self.announced = self._file.announced or max(self.all(), default=0)

    def announce(self, step: int) -> bool:
        """Whether this is the first time in any process of this rank that the script learns that
        `step` is committed. Noted before the script learns it: if the process is killed in between,
        it is never announced, rather than twice."""
        if step < self.announced:
            return False
        self.announced = self._file.announced = step + 1
        return True

    def write(
        self,
        step: int,
        kind: int,
        parts: Sequence[sealed.Buffer | attempt.Rows],
        whole: Callable[[], bool] = lambda: True,
    ) -> None:
        """Keep the record of `step`, `parts` end to end, unless the copy is not `whole`. Drops the
        oldest one. Raises OSError where there is no room; then the rank has no record of `step`,
        and those of the other steps stay."""
        length = sum(map(len, parts))
        most = FEW if length > LARGE else SLOTS
        file, index = self._file, self._kept.begin(step, most)
        checksum = file.write(index, step, kind, list(parts), length, whole, self.announced)
        if checksum is None:
            return
        self._trusted[index] = (step, checksum)
        for old in self._kept.write(step, kind, index, most):
            file.begin(old)
            if most == FEW:
                file.give_back(old)

    def has(self, step: int, kind: int) -> bool:
        """Whether this process has written, or found, a record of that kind."""
        return self._kept.has(step, kind)

    def promote(self, step: int) -> None:
        """Make the provisional record of `step` final; a new one would be the same."""
        self._file.set_kind(self._kept.promote(step), PROMOTED)

    def forget_after(self, step: int) -> None:
        """Drop records of later steps: the ranks have gone back to `step`."""
        for index in self._kept.go_back(step):
            self._file.begin(index)

    def read(self, step: int) -> tuple[int, bytes] | None:
        """(kind, payload) of the newest kind kept for `step`; a record whose checksum or seal fails
        does not exist. One that is promoted is FINAL to its reader."""
        found = self.record(step)
        return (min(found[0], FINAL), found[1]) if found is not None else None

    def record(self, step: int) -> tuple[int, bytes] | None:
        """The same as it is in the file, to be written elsewhere."""
        found = self._view(step)
        return (found[0], bytes(found[1])) if found is not None else None

    def view(self, step: int) -> tuple[int, memoryview] | None:
        """As `read`, without a copy: valid until the next write."""
        found = self._view(step)
        return (min(found[0], FINAL), found[1]) if found is not None else None

    def _view(self, step: int) -> tuple[int, memoryview] | None:
        for slot in reversed(self._file.valid()):
            if slot.step == step and self._whole(slot):
                return slot.kind, self._file.buffer(slot.index)[: slot.length]
        return None

    def _whole(self, slot: Slot) -> bool:
        if slot.kind not in KINDS or self._file.checksum(slot.index, slot.length) != slot.checksum:
            return False
        if self._trusted.get(slot.index) == (slot.step, slot.checksum):
            return True
        try:
            with self._file.buffer(slot.index) as view, view[: slot.length] as payload:
                self.seal.check(payload, slot.step)
        except sealed.BadRecord as error:
            if (slot.index, slot.checksum) not in self._refused:
                self._refused.add((slot.index, slot.checksum))
                log.error(
                    "rank %d: the record of step %d is not used: %s",
                    self.seal.rank,
                    slot.step,
                    error,
                )
            return False
        self._trusted[slot.index] = (slot.step, slot.checksum)
        return True

    def all(self) -> list[int]:
        """Steps that have a record, lowest first."""
        return sorted({slot.step for slot in self._file.valid()})

    def latest(self) -> tuple[int, int] | None:
        """(step, kind) of the newest intact record."""
        slots = reversed(self._file.valid())
        return next(((s.step, min(s.kind, FINAL)) for s in slots if self._whole(s)), None)

    def steps(self) -> tuple[frozenset[int], frozenset[int]]:
        """Steps with a (final, provisional) record whose checksum and seal hold."""
        whole = self.whole()
        return whole.final, whole.provisional

    def whole(self) -> Snapshots:
        """The records kept, without damaged or forged ones."""
        kept = Snapshots()
        for slot in self._file.valid():
            if self._whole(slot):
                kept.records[slot.index] = (slot.step, slot.kind)
        return kept

    def replica_set(self, kept: Snapshots) -> int:
        """The replica set that the newest record of `kept`, just checked, names; 0 without one."""
        newest = max((r for r in kept.records if r is not None), default=None)
        if newest is None:
            return 0
        index = kept.records.index(newest)
        with self._file.buffer(index) as view, view[: sealed.FRONT] as front:
            return sealed.replica_set(front)

    def mark(self, step: int) -> None:
        """Note that `step` was repeated because of its result; later processes of this rank see it
        too."""
        try:
            self._marks.write_text(str(step))
        except OSError as error:
            text = "rank %d: that step %d was repeated cannot be noted for later processes: %s"
            log.warning(text, self.seal.rank, step, error)

    def marked(self) -> int | None:
        """The step marked last, or None."""
        try:
            return int(self._marks.read_text())
        except (FileNotFoundError, ValueError):
            return None


def away(rank: int) -> str:
    """In place of a local rank: where a node has the records of a rank that is away, for which one
    of its ranks stands in."""
    return f"away-{rank}"


def away_ranks(directory: Path) -> list[int]:
    """The ranks of which there are such records."""
    prefix, end = f"entries-{away(0)}"[:-1], ".0"
    names = (n.removeprefix(prefix).removesuffix(end) for n in os.listdir(directory) if prefix in n)
    return sorted(int(name) for name in names if name.isdigit())


def forget(directory: Path, local_rank: int | str) -> None:
    """Remove a rank's records."""
    SlotFile(directory / f"entries-{local_rank}", SLOTS).clear()


def stripe_path(directory: Path, local_rank: int | str) -> Path:
    return directory / f"stripes-{local_rank}"


def stripe_steps(directory: Path, local_rank: int | str) -> frozenset[int]:
    """Steps for which this rank's stripe is complete."""
    file = SlotFile(stripe_path(directory, local_rank), STRIPES)
    return frozenset(slot.step for slot in file.valid())


def names(local_rank: int | str, stripes: bool = True) -> list[str]:
    """The files of a rank's records, of its start and of its stripes."""
    kinds = {"entries": SLOTS, "start": STARTS, "stripes": STRIPES if stripes else 0}
    return [f"{kind}-{local_rank}.{i}" for kind, slots in kinds.items() for i in range(slots)]


def is_large(directory: Path, local_rank: int | str) -> bool:
    """Whether it takes long to read a rank's records: parts of the model are in them."""
    file = SlotFile(directory / f"entries-{local_rank}", SLOTS)
    return any(slot.length > LARGE for slot in file.valid())


def left_behind(directory: Path, local_rank: int | str, rank: int) -> Position | None:
    """A dead rank's position according to its files, or None. Reads every record once, to verify
    its seal."""
    entries = Entries(directory, local_rank, rank)
    kept = entries.whole()
    for step in stripe_steps(directory, local_rank):
        kept.striped(step)
    return kept.left(entries.replica_set(kept))

"""A rank's files in the node's shared memory, in the agent's directory; they outlive the rank.

*Entries* are the private state of a rank (random numbers, loader position, buffers, small objects)
at the start of a step, three slots. *Stripes* are this rank's part of the node's copy of the
replicated training state, two slots. A slot's header is invalidated before a write and set last,
with a release store: a rank killed in the middle of a write leaves the other slots intact. The
worker writes; its replacement and the agent read. No torch here.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import mmap
import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from taskd.core.snapshots import FINAL, KINDS, SLOTS, STRIPES, Snapshots
from taskd.cython_api import attempt, memory
from taskd.messages.values import Position
from taskd.records import sealed

log = logging.getLogger("taskd.records")

_HEADER = struct.Struct("<QQQQ")  # step + 1 (0: not valid), length, checksum, kind
_HEADER_BYTES = 64
_PAGE = 4096
_CAPACITY, _ANNOUNCED = _PAGE - 8, _PAGE - 16  # words behind the headers


@dataclass(frozen=True)
class Slot:
    index: int
    step: int
    length: int
    checksum: int
    kind: int


class SlotFile:
    """A file of `slots` records of up to `capacity` bytes each. Creating it reserves its full size,
    so a full /dev/shm is an OSError(ENOSPC) here and not a SIGBUS at a later store."""

    def __init__(self, path: Path, slots: int, capacity: int | None = None) -> None:
        """Open the file at `path`, or, with a `capacity`, make a new one, which `publish` moves to
        `path`."""
        self.path, self.slots = path, slots
        if capacity is not None:
            capacity = -(-max(capacity, 1) // _PAGE) * _PAGE
            fd = os.open(
                self._unpublished, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600
            )
            try:
                size = _PAGE + slots * capacity
                os.posix_fallocate(fd, 0, size)
                self._map = mmap.mmap(fd, size)
                struct.pack_into("<Q", self._map, _CAPACITY, capacity)
            except OSError:
                with contextlib.suppress(OSError):
                    os.unlink(self._unpublished)
                raise
            finally:
                os.close(fd)
        else:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                self._map = mmap.mmap(fd, os.fstat(fd).st_size)
            finally:
                os.close(fd)
            capacity = struct.unpack_from("<Q", self._map, _CAPACITY)[0]
        self.capacity: int = capacity
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    @property
    def _unpublished(self) -> Path:
        return self.path.with_name(self.path.name + ".new")

    def publish(self) -> None:
        """Replace the file at `path`: a reader opens the old or the new one, never half of one."""
        os.rename(self._unpublished, self.path)

    @property
    def buffer(self) -> mmap.mmap:
        return self._map

    def offset(self, index: int) -> int:
        """Where the bytes of slot `index` begin in `buffer`."""
        return _PAGE + index * self.capacity

    def read_slot(self, index: int) -> Slot | None:
        tag, length, checksum, kind = _HEADER.unpack_from(self._map, index * _HEADER_BYTES)
        return (
            Slot(index, tag - 1, length, checksum, kind)
            if tag and length <= self.capacity
            else None
        )

    @property
    def announced(self) -> int:
        """Of `Entries`; 0 in a new file."""
        found: int = struct.unpack_from("<Q", self._map, _ANNOUNCED)[0]
        return found

    @announced.setter
    def announced(self, step: int) -> None:
        memory.store_release(self.address + _ANNOUNCED, step)

    def valid(self) -> list[Slot]:
        """Complete slots by step, then kind, lowest first."""
        found = (self.read_slot(i) for i in range(self.slots))
        return sorted((s for s in found if s is not None), key=lambda s: (s.step, s.kind))

    def begin(self, index: int) -> None:
        """Invalidate slot `index` before its bytes are touched."""
        memory.store_release(self.address + index * _HEADER_BYTES, 0)

    def commit(self, index: int, step: int, length: int, checksum: int, kind: int) -> None:
        """Mark slot `index` valid; its bytes are in place."""
        at = index * _HEADER_BYTES
        struct.pack_into("<QQQ", self._map, at + 8, length, checksum, kind)
        memory.store_release(self.address + at, step + 1)

    def set_kind(self, index: int, kind: int) -> None:
        """Change the kind of a valid slot, in one store: `struct` clears the bytes first, and a
        reader, or a rank killed right then, would have a record of no kind."""
        memory.store_release(self.address + index * _HEADER_BYTES + 24, kind)

    def write(
        self,
        index: int,
        step: int,
        kind: int,
        parts: list[sealed.Buffer | attempt.Rows],
        whole: Callable[[], bool],
    ) -> int | None:
        """`begin`, copy `parts` end to end, and `commit`; returns the checksum. None, and no
        commit, if they are not `whole` by then."""
        return attempt.publish(
            self.address + index * _HEADER_BYTES,
            self.address + _PAGE + index * self.capacity,
            self.capacity,
            step,
            kind,
            parts,
            whole,
        )

    def write_rows(self, index: int, step: int, rows: attempt.Rows, kind: int) -> bool:
        """The same for rows of bytes, without a checksum. False, and no commit, if a page of them
        was lost during the copy."""
        return rows.publish(
            self.address + index * _HEADER_BYTES, self.address + self.offset(index), step, kind
        )

    def checksum(self, index: int, length: int) -> int:
        value: int = memory.checksum(self.address + self.offset(index), length)
        return value


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
        """Open the file again: another one may have replaced it."""
        self._file: SlotFile | None = None
        self._kept = Snapshots()  # as the file has it
        # slot -> step and checksum of a record whose seal is known to be valid
        self._trusted: dict[int, tuple[int, int]] = {}
        with contextlib.suppress(FileNotFoundError):
            self._file = SlotFile(self._path, SLOTS)
            for slot in self._file.valid():
                self._kept.records[slot.index] = (slot.step, slot.kind)
        # Steps before this one have been committed for the script, by this process or one before.
        # Records alone have come from another node: the steps before them had been.
        self.announced = (self._file.announced or max(self.all(), default=0)) if self._file else 0

    def announce(self, step: int) -> bool:
        """Whether this is the first time in any process of this rank that the script learns that
        `step` is committed. Noted before the script learns it: if the process is killed in between,
        it is never announced, rather than twice."""
        if step < self.announced:
            return False
        self.announced = step + 1
        if self._file is not None:
            self._file.announced = self.announced
        return True

    def write(
        self,
        step: int,
        kind: int,
        parts: Sequence[sealed.Buffer | attempt.Rows],
        whole: Callable[[], bool] = lambda: True,
    ) -> None:
        """Keep the record of `step`, `parts` end to end, unless the copy is not `whole`. Drops the
        oldest one. Raises OSError(ENOSPC)."""
        length = sum(map(len, parts))
        file = self._file
        if file is None or length > file.capacity:
            file = self._grow(length)
        index = self._kept.begin()
        checksum = file.write(index, step, kind, list(parts), whole)
        if checksum is None:
            return
        self._trusted[index] = (step, checksum)
        for old in self._kept.write(step, kind, index):
            file.begin(old)

    def has(self, step: int, kind: int) -> bool:
        """Whether this process has written, or found, a record of that kind."""
        return self._kept.has(step, kind)

    def promote(self, step: int) -> None:
        """Make the provisional record of `step` final; a new one would be the same."""
        assert self._file is not None
        self._file.set_kind(self._kept.promote(step), FINAL)

    def forget_after(self, step: int) -> None:
        """Drop records of later steps: the ranks have gone back to `step`."""
        if self._file is not None:
            for index in self._kept.go_back(step):
                self._file.begin(index)

    def read(self, step: int) -> tuple[int, bytes] | None:
        """(kind, payload) of the newest kind kept for `step`; a record whose checksum or seal fails
        does not exist."""
        found = self.view(step)
        return (found[0], bytes(found[1])) if found is not None else None

    def view(self, step: int) -> tuple[int, memoryview] | None:
        """The same without a copy: valid until the next write."""
        for slot in reversed(self._file.valid() if self._file else []):
            if slot.step == step and self._whole(slot) and self._file is not None:
                at = self._file.offset(slot.index)
                return slot.kind, memoryview(self._file.buffer)[at : at + slot.length]
        return None

    def _whole(self, slot: Slot) -> bool:
        assert self._file is not None
        if slot.kind not in KINDS or self._file.checksum(slot.index, slot.length) != slot.checksum:
            return False
        if self._trusted.get(slot.index) == (slot.step, slot.checksum):
            return True
        at = self._file.offset(slot.index)
        try:
            with memoryview(self._file.buffer) as view, view[at : at + slot.length] as payload:
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
        return sorted({slot.step for slot in self._file.valid()}) if self._file else []

    def latest(self) -> tuple[int, int] | None:
        """(step, kind) of the newest intact record."""
        slots = self._file.valid() if self._file else []
        return next(((s.step, s.kind) for s in reversed(slots) if self._whole(s)), None)

    def steps(self) -> tuple[frozenset[int], frozenset[int]]:
        """Steps with a (final, provisional) record whose checksum and seal hold."""
        whole = self.whole()
        return whole.final, whole.provisional

    def whole(self) -> Snapshots:
        """The records kept, without damaged or forged ones."""
        kept = Snapshots()
        for slot in self._file.valid() if self._file else []:
            if self._whole(slot):
                kept.records[slot.index] = (slot.step, slot.kind)
        return kept

    def replica_set(self, kept: Snapshots) -> int:
        """The replica set that the newest record of `kept`, just checked, names; 0 without one."""
        newest = max((r for r in kept.records if r is not None), default=None)
        if newest is None or self._file is None:
            return 0
        at = self._file.offset(kept.records.index(newest))
        with memoryview(self._file.buffer) as view, view[at : at + sealed.FRONT] as front:
            return sealed.replica_set(front)

    def mark(self, step: int) -> None:
        """Note that `step` was repeated because of its result; later processes of this rank see it
        too."""
        self._marks.write_text(str(step))

    def marked(self) -> int | None:
        """The step marked last, or None."""
        try:
            return int(self._marks.read_text())
        except (FileNotFoundError, ValueError):
            return None

    def _grow(self, need: int) -> SlotFile:
        old = self._file
        grown = SlotFile(self._path, SLOTS, need + need // 2)
        for slot in old.valid() if old else []:
            assert old is not None
            at, to = old.offset(slot.index), grown.offset(slot.index)
            grown.buffer[to : to + slot.length] = old.buffer[at : at + slot.length]
            grown.commit(slot.index, slot.step, slot.length, slot.checksum, slot.kind)
        grown.announced = self.announced
        grown.publish()
        self._file = grown
        return grown


def away(rank: int) -> str:
    """In place of a local rank: where a node has the records of a rank that is away, for which one
    of its ranks stands in."""
    return f"away-{rank}"


def away_ranks(directory: Path) -> list[int]:
    """The ranks of which there are such records."""
    prefix = f"entries-{away(0)}"[:-1]
    names = (name.removeprefix(prefix) for name in os.listdir(directory) if name.startswith(prefix))
    return sorted(int(name) for name in names if name.isdigit())


def forget(directory: Path, local_rank: int | str) -> None:
    """Remove a rank's records; a process that has them open keeps them."""
    (directory / f"entries-{local_rank}").unlink(missing_ok=True)


def stripe_path(directory: Path, local_rank: int | str) -> Path:
    return directory / f"stripes-{local_rank}"


def stripe_steps(directory: Path, local_rank: int | str) -> frozenset[int]:
    """Steps for which this rank's stripe is complete."""
    try:
        return frozenset(
            s.step for s in SlotFile(stripe_path(directory, local_rank), STRIPES).valid()
        )
    except (FileNotFoundError, ValueError):
        return frozenset()


def left_behind(directory: Path, local_rank: int | str, rank: int) -> Position | None:
    """A dead rank's position according to its files, or None. Reads every record once, to verify
    its seal."""
    entries = Entries(directory, local_rank, rank)
    kept = entries.whole()
    for step in stripe_steps(directory, local_rank):
        kept.striped(step)
    return kept.left(entries.replica_set(kept))

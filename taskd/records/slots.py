"""Slots: files in a node's shared memory with one record each. A slot's header is invalidated
before a write and set last, with a release store, so a process that is killed in the middle of a
write costs that slot alone. No torch here.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from taskd.cython_api import attempt, memory
from taskd.records import room, sealed

_HEADER = struct.Struct("<QQQQ")  # step + 1 (0: not valid), length, checksum, kind
_PAGE = 4096
_ANNOUNCED = _PAGE - 16  # a word of the first slot, behind its header
# Bytes. A slot gives back what it does not need once it is this much, and a sixteenth of what it
# has: giving back and taking costs a fault for each page
_SPARE = 256 << 10


@dataclass(frozen=True)
class Slot:
    index: int
    step: int
    length: int
    checksum: int
    kind: int


class _Memory:
    """The memory of one slot: a header, and from the second page on its bytes. `room`: what this
    process has reserved of it."""

    def __init__(self, path: Path) -> None:
        self.path, self.room, self.address = path, 0, 0
        self.capacity = 0  # bytes of a record that this process can reach
        self.map: mmap.mmap | None = None
        self.look()

    def look(self) -> mmap.mmap | None:
        """Map the file as it is now; None if nothing has been reserved of it, or there is no room
        for one more descriptor or mapping: then the slot is as if it were free."""
        with contextlib.suppress(OSError):
            fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            try:
                if (size := os.fstat(fd).st_size) >= _PAGE:
                    self._attach(fd, size)
            finally:
                os.close(fd)
        return self.map

    def _attach(self, fd: int, size: int) -> None:
        self.map = mmap.mmap(fd, size)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        self.capacity = size - _PAGE

    def reserve(self, length: int) -> None:
        """Have room for `length` bytes, and not for much more. Raises OSError."""
        need = _PAGE + -(-length // _PAGE) * _PAGE
        if need > self.room or self.map is None:
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                room.reserve(fd, self.path.parent, need)
                if self.map is None or need > len(self.map):
                    self._attach(fd, os.fstat(fd).st_size)
            finally:
                os.close(fd)
            self.room = need
        elif self.room - need > max(_SPARE, self.room >> 4):
            self.keep(need)

    def keep(self, need: int = _PAGE) -> None:
        """Give back all memory behind the first `need` bytes."""
        begin = -(-need // mmap.PAGESIZE) * mmap.PAGESIZE
        if self.map is not None and len(self.map) > begin:
            # the file keeps its length: no process that reads it runs into its end
            with contextlib.suppress(OSError):
                self.map.madvise(mmap.MADV_REMOVE, begin, len(self.map) - begin)
        self.room = min(self.room, need)


class SlotFile:
    """`slots` records, each in a file of its own, `path` and the slot's number, which takes as much
    memory as its record. The agent makes these files (agent/ranks/shared_memory.py); where it
    could not, the first record does. Memory is reserved before it is written: a lack of it is an
    OSError in `reserve`, and not a SIGBUS at a later store."""

    def __init__(self, path: Path, slots: int) -> None:
        self.slots = slots
        self._at = [_Memory(path.with_name(f"{path.name}.{i}")) for i in range(slots)]

    def reserve(self, index: int, length: int) -> None:
        """Have room for `length` bytes in slot `index`; what it holds stays. Raises OSError."""
        self._at[index].reserve(length)

    def buffer(self, index: int) -> memoryview:
        """The bytes of slot `index`, as many as were reserved by any process."""
        at = self._at[index]
        return memoryview(at.map)[_PAGE:] if at.map is not None else memoryview(b"")

    def region(self, index: int) -> tuple[int, int]:
        """(address, bytes) of slot `index` in this process's memory; (0, 0) if it has none."""
        at = self._at[index]
        return (at.address, len(at.map)) if at.map is not None else (0, 0)

    def read_slot(self, index: int) -> Slot | None:
        at = self._at[index]
        if at.map is None and at.look() is None:
            return None
        assert at.map is not None
        tag, length, checksum, kind = _HEADER.unpack_from(at.map)
        if tag and length > at.capacity:
            at.look()  # another process has written more than there was
        return (
            Slot(index, tag - 1, length, checksum, kind) if tag and length <= at.capacity else None
        )

    @property
    def announced(self) -> int:
        """Of `Entries`; 0 in a new file."""
        first = self._at[0].map
        found: int = struct.unpack_from("<Q", first, _ANNOUNCED)[0] if first is not None else 0
        return found

    @announced.setter
    def announced(self, step: int) -> None:
        if self._at[0].map is not None:
            memory.store_release(self._at[0].address + _ANNOUNCED, step)

    def valid(self) -> list[Slot]:
        """Complete slots by step, then kind, lowest first."""
        found = (self.read_slot(i) for i in range(self.slots))
        return sorted((s for s in found if s is not None), key=lambda s: (s.step, s.kind))

    def begin(self, index: int) -> None:
        """Invalidate slot `index` before its bytes are touched."""
        if self._at[index].map is not None:
            memory.store_release(self._at[index].address, 0)

    def give_back(self, index: int) -> None:
        """Give back the memory of slot `index`, whose record is not valid."""
        self._at[index].keep()

    def clear(self) -> None:
        """Forget all records, and give back their memory."""
        self.announced = 0
        for index in range(self.slots):
            self.begin(index)
            self.give_back(index)

    def commit(self, index: int, step: int, length: int, checksum: int, kind: int) -> None:
        """Mark slot `index` valid; its bytes are in place."""
        at = self._at[index]
        assert at.map is not None, "reserve first"
        struct.pack_into("<QQQ", at.map, 8, length, checksum, kind)
        memory.store_release(at.address, step + 1)

    def set_kind(self, index: int, kind: int) -> None:
        """Change the kind of a valid slot, in one store: `struct` clears the bytes first, and a
        reader, or a rank killed right then, would have a record of no kind."""
        memory.store_release(self._at[index].address + 24, kind)

    def write(
        self,
        index: int,
        step: int,
        kind: int,
        parts: list[sealed.Buffer | attempt.Rows],
        length: int,
        whole: Callable[[], bool],
        announced: int = 0,
    ) -> int | None:
        """Have room for `length` bytes, those of `parts` end to end, copy them, and mark the slot
        valid; returns the checksum. None, and it is not valid, if they are not `whole` by then.
        Raises OSError where there is no room; it is not valid then either. `announced`: see
        `Entries`."""
        at = self._at[index]
        # there is room for as much, and not for much more
        spare = at.room - length - _PAGE
        if spare < 0 or spare > max(_SPARE, at.room >> 4) or at.map is None:
            self.begin(index)
            at.reserve(length)
            if index == 0:
                self.announced = announced  # there may have been no room to note it
        return attempt.publish(
            at.address, at.address + _PAGE, at.capacity, step, kind, parts, whole
        )

    def write_rows(self, index: int, step: int, rows: attempt.Rows, kind: int) -> bool:
        """The same for rows of bytes, without a checksum. False, and no commit, if a page of them
        was lost during the copy."""
        at = self._at[index].address
        return rows.publish(at, at + _PAGE, step, kind)

    def checksum(self, index: int, length: int) -> int:
        value: int = memory.checksum(self._at[index].address + _PAGE, length)
        return value

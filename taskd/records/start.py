"""A rank's *start record*: inputs of its set-up that its replacement must see again, in the agent's
directory in the node's shared memory; it outlives the rank.

It has named sections of bytes (CODE, SETUP, FOLDERS, NAMED) and is sealed like an entry
(sealed.py), under a seal of its own: no entry passes for one. It is written whole or not at all, in
the slot that does not have the one before, and sent to the node's keepers before the entries that
follow it. The rank
writes; its replacement and the agent read.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from taskd.core.job.snapshots import START, STARTS
from taskd.records import sealed
from taskd.records.slots import SlotFile

log = logging.getLogger("taskd.records")

CODE = "code"  # the sources that the rank has loaded, see worker/set_up/sources.py
SETUP = "setup"  # results of the collectives of its set-up
FOLDERS = "folders"  # the directories that it has made, see worker/set_up/folders.py
NAMED = "named"  # what it names things by, see worker/set_up/names.py

# bytes; a keeper takes messages of up to 1 GiB (agent/copies/keeper_connection.py), and sending
# this many delays the records behind them by a second or more
MOST = 512 << 20
NAMES = 64 << 10  # bytes; of the sections

_writing = threading.Lock()  # two threads of a rank may write sections of its record


class Start:
    """The start record of one rank."""

    def __init__(self, directory: Path, local_rank: int | str, rank: int) -> None:
        """`rank`: the global one, named in the record. Raises FileNotFoundError if the agent has
        left no key."""
        self._file = SlotFile(directory / f"start-{local_rank}", STARTS)
        seal = sealed.seal_of(directory, rank)
        self.seal = seal_of(seal.key, seal.job, rank)

    def write(self, sections: dict[str, bytes]) -> None:
        """Keep these sections, and those of other names as they are. Raises OSError: there is no
        room, or they are too large for one record."""
        with _writing:
            every = {**self.read(), **sections}
            size = sum(map(len, every.values()))
            if size > MOST:
                sizes = ", ".join(f"{name} {len(data)}" for name, data in every.items())
                raise OSError(
                    errno.EFBIG,
                    f"the start record of rank {self.seal.rank} would have {size} bytes ({sizes}),"
                    f" at most {MOST} are allowed",
                )
            # views: the seal would keep whole sections in memory to recognize them
            views: list[sealed.Buffer] = [memoryview(data) for data in every.values()]
            parts = self.seal.close(0, json.dumps(list(every)).encode(), [*views])
            self._put([parts[0], *views])  # type: ignore[list-item]

    def read(self, held: int = 0) -> dict[str, bytes]:
        """Its sections; {} if there is none, or it is not intact. `held`: the version that is
        meant, 0 for the newest."""
        opened = self._open(held)
        if opened is None:
            return {}
        _, fields, sections = opened
        names = json.loads(bytes(fields)) if len(fields) <= NAMES else ()
        return dict(zip(names, map(bytes, sections), strict=False))

    def record(self) -> bytes | None:
        """The sealed record as it is; None if there is none, or it is not intact."""
        opened = self._open()
        return opened[0] if opened is not None else None

    @property
    def version(self) -> int:
        """The number of the record as it is now, 1 for the first; 0 if there is none. The next one
        leaves it as it is; the one after that does not."""
        return max((slot.step for slot in self._file.valid()), default=0)

    def _open(self, held: int = 0) -> tuple[bytes, memoryview, list[memoryview]] | None:
        """The record, its fields and its sections."""
        for last in (False, True):
            wanted = held or self.version
            slot = next((s for s in self._file.valid() if s.step == wanted), None)
            if slot is None:
                return None
            data = bytes(self._file.buffer(slot.index)[: slot.length])
            try:
                return (data, *self.seal.open(data, 0))
            except sealed.BadRecord as error:
                # a process that writes two others meanwhile has overwritten it
                if last or self.version == wanted:
                    text = "rank %d: the record of its start is not used: %s"
                    log.error(text, self.seal.rank, error)
                    return None
        return None

    def put(self, record: bytes) -> None:
        """Put a sealed record in place. Raises BadRecord, OSError."""
        self.seal.check(record, 0)
        self._put([record])

    def _put(self, parts: list[sealed.Buffer]) -> None:
        file, version = self._file, self.version
        index = next((s.index for s in file.valid() if s.step == version), 1) ^ 1
        length = sum(map(len, parts))
        file.write(index, version + 1, START, [*parts], length, lambda: True)


def others(directory: Path, local_rank: int, rank: int) -> Iterator[Start]:
    """Those of the other ranks of this node. Parameters as for `Start`."""
    for name in sorted(os.listdir(directory)):
        number = name.removeprefix("start-").removesuffix(".0")
        if name == f"start-{number}.0" and number.isdigit() and int(number) != local_rank:
            yield Start(directory, int(number), rank - local_rank + int(number))


def seal_of(key: bytes, job: str, rank: int) -> sealed.Seal:
    """The seal of the start record of global rank `rank`, where `key` and `job` are those of its
    entries."""
    return replace(sealed.Seal(key, job, rank), job=f"{job}\0start")

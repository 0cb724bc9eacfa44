"""The rank's side of the copies of its records on another node: it notifies the agent of what it
has written, and waits until the other node has it. Where no node keeps copies it sends nothing."""

from __future__ import annotations

import contextlib
import logging
import os
from collections import deque
from pathlib import Path

from taskd.core.job.snapshots import SLOTS
from taskd.cython_api import slot
from taskd.records.store import NOTE, NOTES

# Longer than the 5 s after which the agent lets ranks continue without copies: only a lost note or
# acknowledgment takes this long, and it must not block the rank forever.
AGAIN_MS = 6000

Note = tuple[int, int, int]  # kind, number and step of a record

log = logging.getLogger("taskd.worker")


class Copies:
    """A pipe to the agent, which does the rest. When an agent begins to copy, it reads all existing
    records, so earlier ones need no note."""

    def __init__(self, directory: Path, local_rank: int, incarnation: int = 0) -> None:
        # higher than those of all previous processes, whose records on keepers must not let this
        # rank continue
        self._local_rank, self._number = local_rank, incarnation << 32
        # notes of records that the agent has not been sent
        self._unsent: deque[Note] = deque(maxlen=SLOTS)
        self._sent: Note | None = None  # the last one that it has been
        self._path, self._pipe = directory / NOTES, -1
        with contextlib.suppress(OSError):  # tried again where it is used
            self._open()

    def _open(self) -> None:
        # for reading too: where nobody reads, in a job of one node, it could not be opened
        # otherwise
        self._pipe = os.open(self._path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def wrote(self, step: int, kind: int) -> None:
        self._number += 1
        self._unsent.append((kind, self._number, step))
        if slot.copying():
            self._notify()

    def _notify(self) -> None:
        try:
            for note in self._unsent:
                self._write(note)
                self._sent = note
            self._unsent.clear()
        except OSError as error:
            # no file can be opened: the notes stay, and the rank does not wait for these copies
            log.warning("the agent does not hear of record %d: %s", self._number, error)

    def _write(self, note: Note) -> None:
        kind, number, step = note
        # full: the agent is stopped; it reads all records when it begins to copy again
        with contextlib.suppress(BlockingIOError):
            if self._pipe < 0:
                self._open()
            os.write(self._pipe, NOTE.pack(self._local_rank, kind, number, step))

    def wait(self, built_at: int) -> bool:
        """Wait until the newest record is kept on another node, if the agent requires that; False
        on an interruption newer than `built_at`."""
        if self._unsent and slot.copying():  # copying began meanwhile, or again
            self._notify()
        number = self._sent[1] if self._sent is not None else 0
        while (done := slot.wait_copied(number, built_at, AGAIN_MS)) is None:
            log.warning("no copy of record %d: the agent is notified again", number)
            if self._sent is not None:
                self._write(self._sent)
        return done

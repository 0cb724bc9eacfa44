"""The rank's side of the copies of its records on another node: it says what it has written, and
waits until that is kept there. Where nobody keeps copies it says nothing."""

from __future__ import annotations

import contextlib
import logging
import os
from collections import deque
from pathlib import Path

from taskd.core.snapshots import SLOTS
from taskd.cython_api import slot
from taskd.records.store import NOTE, NOTES

# a copy takes a round trip; a keeper that says nothing is given up by the agent after 5 s
AGAIN_MS = 2000

Note = tuple[int, int, int]  # kind, number and step of a record

log = logging.getLogger("taskd.worker")


class Copies:
    """A pipe to the agent, which takes care of the rest. Who begins to keep copies takes what is
    there, so that what was written before need not be told."""

    def __init__(self, directory: Path, local_rank: int) -> None:
        self._local_rank, self._number = local_rank, 0
        # of records that the agent was not told of
        self._untold: deque[Note] = deque(maxlen=SLOTS)
        self._told: Note | None = None  # the last one that it was
        # for reading too: where nobody reads, in a job of one node, it could not be opened
        # otherwise
        self._pipe = os.open(directory / NOTES, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def wrote(self, step: int, kind: int) -> None:
        self._number += 1
        self._untold.append((kind, self._number, step))
        if slot.copying():
            self._tell()

    def _tell(self) -> None:
        for note in self._untold:
            self._write(note)
            self._told = note
        self._untold.clear()

    def _write(self, note: Note) -> None:
        kind, number, step = note
        # full: the agent is stopped, and what it has not read by then it is told again
        with contextlib.suppress(OSError):
            os.write(self._pipe, NOTE.pack(self._local_rank, kind, number, step))

    def wait(self, built_at: int) -> bool:
        """Until the newest record is kept elsewhere, if that is asked for; False when an
        interruption newer than `built_at` is."""
        if self._untold and slot.copying():  # they are kept since, or again
            self._tell()
        number = self._told[1] if self._told is not None else 0
        while (done := slot.wait_copied(number, built_at, AGAIN_MS)) is None:
            # a note that was lost must not hold the rank forever
            log.warning("no copy of record %d: the agent is notified again", number)
            if self._told is not None:
                self._write(self._told)
        return done

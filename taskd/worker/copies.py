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

log = logging.getLogger("taskd.worker")


class Copies:
    """A pipe to the agent, which takes care of the rest. Who begins to keep copies takes what is
    there, so that what was written before need not be told."""

    def __init__(self, directory: Path, local_rank: int) -> None:
        self._local_rank, self._number = local_rank, 0
        # (kind, number, step) of records that the agent was not told of
        self._untold: deque[tuple[int, int, int]] = deque(maxlen=SLOTS)
        self._told = 0  # number of the last one that it was
        self._newest: tuple[int, int, int] | None = None  # that one
        # for reading too: where nobody reads, in a job of one node, it could not be opened
        # otherwise
        self._pipe = os.open(directory / NOTES, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def wrote(self, step: int, kind: int) -> None:
        self._number += 1
        self._untold.append((kind, self._number, step))
        if slot.copying():
            self._tell()

    def _tell(self) -> None:
        for kind, number, step in self._untold:
            # full: the agent is stopped, and what it has not read by then it is told again
            with contextlib.suppress(OSError):
                os.write(self._pipe, NOTE.pack(self._local_rank, kind, number, step))
        if self._untold:
            self._newest = self._untold[-1]
        self._untold.clear()
        self._told = self._number

    def wait(self, built_at: int) -> bool:
        """Until the newest record is kept elsewhere, if that is asked for; False when an
        interruption newer than `built_at` is."""
        if self._untold and slot.copying():  # they are kept since, or again
            self._tell()
        while (done := slot.wait_copied(self._told, built_at, AGAIN_MS)) is None:
            # Nothing has come back: a note that was lost must not hold the rank forever.
            log.warning("the agent is told of the newest record again")
            if self._newest is not None:
                kind, number, step = self._newest
                with contextlib.suppress(OSError):
                    os.write(self._pipe, NOTE.pack(self._local_rank, kind, number, step))
        return done

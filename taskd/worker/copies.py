"""The rank's side of the copies of its records on another node: it says what it has written, and
waits until that is kept there."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from taskd.cython_api import slot
from taskd.vault import NOTE, NOTES


class Copies:
    """A pipe to the agent, which takes care of the rest. Where nobody keeps copies this costs a few
    microseconds a record."""

    def __init__(self, directory: Path, local_rank: int) -> None:
        self._local_rank, self._number = local_rank, 0
        # for reading too: where nobody reads, in a job of one node, it could not be opened
        # otherwise
        self._pipe = os.open(directory / NOTES, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def wrote(self, step: int, kind: int) -> None:
        self._number += 1
        # full: the agent is stopped, and what it has not read by then it is told again
        with contextlib.suppress(OSError):
            os.write(self._pipe, NOTE.pack(self._local_rank, kind, self._number, step))

    def wait(self, era: int) -> bool:
        """Until the newest record is kept elsewhere, if that is asked for; False when a pause newer
        than `era` is."""
        done: bool = slot.wait_copied(self._number, era)
        return done

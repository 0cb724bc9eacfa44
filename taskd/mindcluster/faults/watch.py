"""Has the directory of the fault configuration changed? The kernel tells at once (inotify); a look
each PollInterval finds the rest.

It does not tell of a network file system that another host writes to, and of a directory that was
replaced as a whole. A mounted ConfigMap is replaced by swapping a symlink in the directory, which
it does tell.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from inotify_simple import INotify, flags

from taskd.mindcluster.faults import codes, customization
from taskd.mindcluster.faults.configuration import POLL_INTERVAL

FILES = (codes.NAME, customization.NAME, POLL_INTERVAL)
CHANGES = (
    flags.CLOSE_WRITE
    | flags.MOVED_TO
    | flags.MOVED_FROM
    | flags.CREATE
    | flags.DELETE
    | flags.DELETE_SELF
    | flags.MOVE_SELF
)
# device, inode, size and time of each file; None: it is not there
Signature = tuple[tuple[int, int, int, int] | None, ...]


class Watch:
    """Used by one thread; `descriptor` becomes readable when something has happened, -1 where the
    kernel does not tell."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.seen = self.signature()
        self._told: INotify | None = None
        self._at: tuple[int, int] | None = None  # the directory that the kernel tells of
        with contextlib.suppress(OSError):  # no more are allowed to this user
            self._told = INotify(nonblocking=True)
        self.follow()

    @property
    def descriptor(self) -> int:
        return self._told.fileno() if self._told is not None else -1

    def changed(self) -> bool:
        """Whether any of the files is another one than at the last call."""
        if self._told is not None:
            list(self._told.read(timeout=0))
            self.follow()
        now = self.signature()
        if now == self.seen:
            return False
        self.seen = now
        return True

    def follow(self) -> None:
        """The directory of that name, which may be another one than before."""
        try:
            status = os.stat(self.directory)
            if self._told is not None and self._at != (at := (status.st_dev, status.st_ino)):
                self._told.add_watch(self.directory, CHANGES)
                self._at = at
        except OSError:
            self._at = None  # looked for again at the next look

    def signature(self) -> Signature:
        return tuple(_status(self.directory / name) for name in FILES)

    def close(self) -> None:
        if self._told is not None:
            self._told.close()


def _status(path: Path) -> tuple[int, int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)

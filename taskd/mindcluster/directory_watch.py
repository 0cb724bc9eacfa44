"""Detects changes of files in a mounted directory: at once by inotify, the rest when asked.

inotify does not report a network file system that another host writes to, or a directory that was
replaced as a whole. It does report a mounted ConfigMap, which is replaced by swapping a symlink in
the directory.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from inotify_simple import INotify, flags

CHANGES = (
    flags.CLOSE_WRITE
    | flags.MOVED_TO
    | flags.MOVED_FROM
    | flags.CREATE
    | flags.DELETE
    | flags.DELETE_SELF
    | flags.MOVE_SELF
)
# device, inode, size and time of each file; None: absent
Signature = tuple[tuple[int, int, int, int] | None, ...]


class DirectoryWatch:
    """Watches one directory, for one thread. `descriptor` becomes readable on a change; -1 where
    inotify is not available."""

    def __init__(self, directory: Path, files: tuple[str, ...]) -> None:
        self.directory, self._files = directory, files
        self.seen = self.signature()
        self._told: INotify | None = None
        self._at: tuple[int, int] | None = None  # the directory that inotify watches
        with contextlib.suppress(OSError):  # this user's limit is reached
            self._told = INotify(nonblocking=True)
        self.follow()

    @property
    def descriptor(self) -> int:
        return self._told.fileno() if self._told is not None else -1

    def changed(self) -> bool:
        """Whether any of the files has changed since the last call."""
        if self._told is not None:
            list(self._told.read(timeout=0))
            self.follow()
        now = self.signature()
        if now == self.seen:
            return False
        self.seen = now
        return True

    def follow(self) -> None:
        """Watch the directory of that name, which may have been replaced."""
        try:
            status = os.stat(self.directory)
            if self._told is not None and self._at != (at := (status.st_dev, status.st_ino)):
                self._told.add_watch(self.directory, CHANGES)
                self._at = at
        except OSError:
            self._at = None  # tried again at the next check

    def signature(self) -> Signature:
        return tuple(_status(self.directory / name) for name in self._files)

    def close(self) -> None:
        if self._told is not None:
            self._told.close()


def _status(path: Path) -> tuple[int, int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)

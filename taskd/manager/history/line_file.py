"""Shared by the files of JSON lines: one writer at a time, and the repair of a torn last line."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from taskd.logs import open_to_append


class Lock:
    """Held by the one process that may write; freed when it ends, however it does."""

    def __init__(self, path: Path) -> None:
        self._path, self._descriptor = path, -1

    @property
    def held(self) -> bool:
        return self._descriptor >= 0

    def acquire(self) -> bool:
        """Whether this process has it now; False if another one has. Makes the directory. Raises
        OSError."""
        if self.held:
            return True
        self._path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        descriptor = open_to_append(self._path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        except OSError:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        if self.held:
            os.close(self._descriptor)
            self._descriptor = -1


def mend(descriptor: int) -> bytes:
    """Bytes to write before the next line: a killed writer or a full disk may have torn the last
    one."""
    size = os.fstat(descriptor).st_size
    return b"\n" if size > 0 and os.pread(descriptor, 1, size - 1) != b"\n" else b""


def append(descriptor: int, data: bytes) -> None:
    """Append all of `data`, or raise OSError."""
    if os.write(descriptor, data) < len(data):
        raise OSError(errno.ENOSPC, "the disk is full")

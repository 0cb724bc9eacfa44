"""Writes a rank's profile: `DIRECTORY/JOB/RANK/UNIX_TIME`, a new file after 10 MB; the oldest is
deleted when the rank has more than its share of the limit."""

from __future__ import annotations

import logging
import re
import time
from pathlib import Path

from taskd import logs

FILE = 10_000_000  # bytes; documented

log = logging.getLogger("taskd.worker")


def folder(base: Path, job: str, rank: int) -> Path:
    """A job id may be any text; a path may not."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", job)[:120].lstrip(".") or "job"
    return base / plain / str(rank)


def kept(directory: Path) -> list[Path]:
    """The files of a rank, the oldest first. Raises OSError."""
    there = directory.iterdir() if directory.is_dir() else ()
    named = (path for path in there if path.name.isdigit())
    return sorted(named, key=lambda path: int(path.name))


class Files:
    """`share`: bytes that this rank may keep."""

    def __init__(self, directory: Path, share: int) -> None:
        self._directory, self._share = directory, share
        self._current: Path | None = None
        self._number = 0  # of the newest file
        self._warned = False
        self.lost = 0  # lines that could not be written

    def write(self, lines: list[bytes]) -> None:
        """Append the lines. A full disk costs them, and one warning."""
        if not lines or not self._share:
            return
        data = b"\n".join(lines) + b"\n"
        try:
            self._make_room(len(data))
            with open(logs.open_to_append(self._file(len(data))), "ab") as file:
                file.write(data)
        except OSError as error:
            self.lost += len(lines)
            if not self._warned:
                log.warning("the profile in %s cannot be written: %s", self._directory, error)
            self._warned = True
        else:
            self._warned = False

    def _file(self, more: int) -> Path:
        """The file to append to."""
        if self._current is None or self._size(self._current) + more > FILE:
            self._directory.mkdir(parents=True, exist_ok=True)
            known = (int(path.name) for path in kept(self._directory)[-1:])
            # a later file has a higher number, also in the same second
            self._number = max(int(time.time()), self._number + 1, *(n + 1 for n in known))
            self._current = self._directory / str(self._number)
        return self._current

    def _make_room(self, more: int) -> None:
        files = kept(self._directory)
        sizes = {path: self._size(path) for path in files}
        while files and sum(sizes[path] for path in files) + more > self._share:
            oldest = files.pop(0)
            oldest.unlink(missing_ok=True)
            if oldest == self._current:
                self._current = None

    @staticmethod
    def _size(path: Path) -> int:
        try:
            return path.stat().st_size
        except OSError:
            return 0

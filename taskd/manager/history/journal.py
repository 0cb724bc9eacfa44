"""Writes the journal of a job, `journal-JOB.jsonl`.

The journal has one writer, the manager that holds its lock. A line is handed to the kernel before
the manager continues, so it outlives the manager's process; a file system that hangs is waited for
once, for a second (taskd/file_thread.py). A line is not forced to disk, which can take as long as a
repair: a power failure loses the last seconds, but agents report the state that the next manager
needs. A failed write costs one warning; the newest lines wait in memory and are written, with the
number of lost ones, when that is possible again.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from taskd import file_thread, logs
from taskd.history import files
from taskd.history.reading import Record
from taskd.manager.history import line_file

WAITING = 1000  # lines that wait in memory while none can be written
TEXT = 4000  # characters of a text; a message that names every rank is much longer
TRACEBACK = 20_000  # of a traceback, which the agent cuts at 16 KiB
JUMP = 1.0  # seconds; a clock that is disciplined moves by half a millisecond a second
LISTED = 100  # texts in a list

log = logging.getLogger("taskd.manager.journal")


class Journal:
    """`time` of an entry: the wall clock when this manager began, and its monotonic clock since, so
    that it never goes back."""

    def __init__(
        self,
        directory: str,
        job: str,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        most_bytes: int = files.BYTES,
    ) -> None:
        self.directory, self.job = Path(directory), job
        self._ahead = self._known = wall() - clock()
        self._wall, self._clock, self._most_bytes = wall, clock, most_bytes
        self._descriptor = -1
        self._whole, self._size = False, 0  # the last line of the file, and its bytes
        self._lock: line_file.Lock | None = None
        self._start: dict[str, Any] | None = None  # repeated at the head of each file
        self._waiting: deque[bytes] = deque()
        self._lost = 0  # lines
        self._guard = threading.Lock()  # of these two
        self._warned = False
        self.listeners: list[Callable[[Record], None]] = []  # told each entry, in its order

    @property
    def path(self) -> Path:
        return files.path(self.directory, self.job)

    def unix(self, moment: float) -> float:
        """A moment of the monotonic clock as Unix time."""
        return round(moment + self._ahead, 6)

    def jump(self) -> float:
        """Seconds by which somebody has set the wall clock ahead since the last call; 0 if nobody
        has. Of a machine that slept, its sleep."""
        before = self._clock()
        ahead = self._wall() - before
        # a process that stood still between the two readings has not read the same moment
        if self._clock() - before > JUMP / 2 or abs(by := ahead - self._known) < JUMP:
            return 0.0
        self._known = ahead
        return by

    # -- what is written ---------------------------------------------------------------------------

    def begin(self, data: Mapping[str, Any]) -> None:
        """A manager starts: the first entry, which each file repeats."""
        self._start = {"version": files.VERSION, "job": self.job, **data}
        self.write("start", self._start)

    def write(self, kind: str, data: Mapping[str, Any]) -> None:
        """Append an entry. `began` in it, if there is one, is on the monotonic clock."""
        data = bounded(data)
        if type(began := data.get("began")) is float:
            data["began"] = self.unix(began)
        entry = Record(kind, self._now(), data)
        with self._guard:
            self._waiting.append(_line(entry))
            while len(self._waiting) > WAITING:
                self._waiting.popleft()
                self._lost += 1
        self.flush()
        for listener in self.listeners:
            try:
                listener(entry)
            except Exception:
                log.exception("an entry of kind %s is not counted or delivered", kind)

    # -- the file ----------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write the waiting lines, if that is possible now."""
        if self._waiting:
            self._do(self._write)

    def close(self) -> None:
        """Write the waiting lines, sync them to disk, and let the next manager write."""
        self.flush()
        self._do(self._close)

    def _do(self, action: Callable[[], None]) -> None:
        try:
            file_thread.do(action)
        except (OSError, ValueError) as error:
            self._warn(error)

    # -- in the file thread ------------------------------------------------------------------------

    def _write(self) -> None:
        if not self._ready():
            self._warn(BlockingIOError(errno.EAGAIN, "another manager writes it"))
            return
        while self._waiting:
            with self._guard:
                line, lost = self._waiting.popleft(), self._lost
                self._lost = 0
            try:
                if lost:
                    self._append(_line(Record("gap", self._now(), {"lost": lost})))
                    lost = 0
                self._append(line)
            except BaseException:
                with self._guard:
                    self._waiting.appendleft(line)
                    self._lost += lost
                raise
        if self._size >= self._most_bytes:
            self._next_file()

    def _close(self) -> None:
        try:
            if self._descriptor >= 0:
                os.fsync(self._descriptor)
        finally:
            self._forget()
            if self._lock is not None:
                self._lock.release()

    def _ready(self) -> bool:
        """Whether the file is open; False if another manager has it. Raises OSError."""
        if self._lock is None:
            self._lock = line_file.Lock(self.path.with_suffix(".lock"))
        if not self._lock.acquire():
            return False
        # it was removed, for example with its directory
        if self._descriptor >= 0 and os.fstat(self._descriptor).st_nlink == 0:
            self._forget()
        if self._descriptor < 0:
            self.path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            self._descriptor, self._whole = logs.open_to_append(self.path), False
        return True

    def _append(self, line: bytes) -> None:
        """Append a line to the open file. Raises OSError."""
        if not self._whole:
            line = line_file.mend(self._descriptor) + line
            self._size = os.fstat(self._descriptor).st_size
        self._whole = False
        line_file.append(self._descriptor, line)
        self._whole, self._size = True, self._size + len(line)

    def _next_file(self) -> None:
        self._forget()
        for age in range(files.FILES - 1, 0, -1):
            older = files.path(self.directory, self.job, age)
            newer = files.path(self.directory, self.job, age - 1)
            if newer.exists():
                newer.replace(older)
        if self._ready() and self._start is not None:
            again = {**self._start, "repeated": True}
            self._append(_line(Record("start", self._now(), again)))

    def _forget(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _now(self) -> float:
        return self.unix(self._clock())

    def _warn(self, error: OSError | ValueError) -> None:
        if not self._warned:
            self._warned = True
            why = getattr(error, "strerror", None) or str(error)
            usual = "set TASKD_LOG_PATH to a directory with room that this user may write to"
            remedy = file_thread.remedy(error, usual)
            log.warning("%s cannot be written: %s; %s", self.path, why, remedy)


def _line(entry: Record) -> bytes:
    whole = {"time": entry.time, "kind": entry.kind, **entry.data}
    return json.dumps(whole, separators=(",", ":")).encode() + b"\n"


def bounded(data: Mapping[str, Any]) -> dict[str, Any]:
    """The fields with long texts and long lists of texts cut, which say so."""
    long = {"traceback": TRACEBACK}
    return {name: _bounded(value, long.get(name, TEXT)) for name, value in data.items()}


def _bounded(value: Any, most: int = TEXT) -> Any:
    if isinstance(value, str):
        more = len(value) - most
        return value if more <= 0 else f"{value[:most]}... and {more} more characters"
    if isinstance(value, list | tuple) and value and isinstance(value[0], str):
        cut = [_bounded(text) for text in value[:LISTED]]
        return cut + [f"and {len(value) - LISTED} more"] if len(value) > LISTED else cut
    return value

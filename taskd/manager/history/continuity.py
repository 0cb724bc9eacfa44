"""continuity.jsonl in the log directory: state that the next manager needs and agents do not have:
whether recovery is paused, the state of devices (fault codes with their counts, separations), and
the address of the manager in charge.

One JSON object per line, {"time", "key", "value"}; the last one of a key counts, and null removes
it. One manager writes, the one that holds continuity.lock. A line torn by a killed writer is
skipped and counted. A file with many superseded lines is rewritten and replaced atomically.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from taskd import file_thread, logs
from taskd.manager.history import line_file
from taskd.mindcluster.faults.findings import read_regular

NAME, LOCK = "continuity.jsonl", "continuity.lock"
MOST_BYTES = 64 << 20
SUPERSEDED = 1000  # lines before the file is rewritten

log = logging.getLogger("taskd.manager")


DEVICE = "device"  # device/10.0.0.3/1: what is known of a device, see devices/state.py


def recovery_key(job: str) -> str:
    """The key of how often recovery of a job has been switched: odd while it is paused."""
    return f"recovery/{job}"


def label_key(job: str) -> str:
    """The key of the pod's label process-recover-enable, as the last manager saw it."""
    return f"label/{job}"


def place_key(job: str) -> str:
    """The key of the address of the manager in charge."""
    return f"manager/{job}"


class Continuity:
    """The values in `directory`/continuity.jsonl. A failed write costs one warning, nothing
    else."""

    def __init__(
        self, directory: str | os.PathLike[str], wall: Callable[[], float] = time.time
    ) -> None:
        self.path = Path(directory) / NAME
        self._wall = wall
        self._values: dict[str, Any] = {}
        self._unwritten: set[str] = set()
        self._lines = 0  # in the file, those that count no longer included
        self._lock = line_file.Lock(self.path.parent / LOCK)
        self._warned = False

    def read(self) -> dict[str, Any]:
        """Return the values, and keep them. A file that cannot be read is an error in the log."""
        try:
            values, damaged = self.load()
        except OSError as error:
            log.error(
                "%s cannot be read: %s; whether recovery is paused, and which faults devices had,"
                " is unknown; set TASKD_LOG_PATH to the directory of the previous managers",
                self.path,
                error.strerror,
            )
            return {}
        if damaged:
            log.error("%s: %d lines are damaged and are ignored", self.path, damaged)
        return values

    def load(self) -> tuple[dict[str, Any], int]:
        """`read`, and how many lines are damaged. Raises OSError."""
        file_thread.check(self.path)
        try:
            data = read_regular(self.path, MOST_BYTES, newest=True)
        except FileNotFoundError:
            data = b""
        self._values, damaged = {}, 0
        lines = [line for line in data.split(b"\n") if line.strip()]
        for line in lines:
            try:
                entry = json.loads(line)
                key, value = entry["key"], entry["value"]
                if not isinstance(key, str):
                    raise TypeError
            except (ValueError, KeyError, TypeError, RecursionError):
                damaged += 1
                continue
            if value is None:
                self._values.pop(key, None)
            else:
                self._values[key] = value
        self._lines = len(lines)
        return dict(self._values), damaged

    def keep(self, key: str, value: Any) -> str:
        """Keep a value, JSON's, for the next manager; None removes it. Returns as `write` does."""
        if self._values.get(key) != value:
            if value is None:
                self._values.pop(key, None)
            else:
                self._values[key] = value
            self._unwritten.add(key)
        return self.write()

    def write(self) -> str:
        """Write pending values. Returns why that is impossible, or ""."""
        if not self._unwritten:
            return ""
        try:
            file_thread.do(self._write_all)
        except (OSError, ValueError) as error:
            return self._warn(error)
        return ""

    def forget(self, job: str) -> None:
        """The job is over: forget it, so that another one with that id begins fresh."""
        self.keep(recovery_key(job), None)
        self.keep(label_key(job), None)

    def close(self) -> None:
        """Let the next manager write."""
        self.write()
        with contextlib.suppress(OSError):
            file_thread.do(self._lock.release)

    # -- in the file thread ------------------------------------------------------------------------

    def _write_all(self) -> None:
        if not self._lock.acquire():
            raise BlockingIOError(errno.EAGAIN, "another manager writes it")
        while self._unwritten:
            # first, so that a value that is kept meanwhile is written, too
            self._unwritten.discard(key := min(set(self._unwritten)))
            try:
                self._write(key, self._values.get(key))
            except BaseException:
                self._unwritten.add(key)
                raise

    def _write(self, key: str, value: Any) -> None:
        if self._lines > SUPERSEDED + 2 * len(self._values):
            self._write_anew()
            return
        descriptor = logs.open_to_append(self.path)
        try:
            line = line_file.mend(descriptor) + self._line(key, value)
            line_file.append(descriptor, line)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self._lines += 1

    def _write_anew(self) -> None:
        values, other = dict(self._values), self.path.with_suffix(".new")
        with open(logs.open_to_append(other, fresh=True), "wb") as file:
            file.writelines(self._line(key, value) for key, value in values.items())
            file.flush()
            os.fsync(file.fileno())
        other.replace(self.path)
        self._lines = len(values)

    def _line(self, key: str, value: Any) -> bytes:
        return json.dumps({"time": self._wall(), "key": key, "value": value}).encode() + b"\n"

    def _warn(self, error: OSError | ValueError) -> str:
        why = getattr(error, "strerror", None) or str(error)
        if not self._warned:
            self._warned = True
            usual = "set TASKD_LOG_PATH to a directory that this user may write to"
            if isinstance(error, BlockingIOError):
                usual = "of two jobs, give each a TASKD_LOG_PATH of its own: their logs are mixed"
            remedy = file_thread.remedy(error, usual)
            log.warning(
                "%s cannot be written: %s; the next manager will not know whether recovery is"
                " paused, nor the faults of devices, and launchers will not find this one; %s",
                self.path,
                why,
                remedy,
            )
        return why

"""incidents.jsonl: one JSON object per closed incident and one for the end of the job, for `taskd
status` and for operators."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from taskd.core import commands

NAME = "incidents.jsonl"

log = logging.getLogger("taskd.manager.journal")


class Journal:
    """Appends to `directory`/incidents.jsonl. A journal that cannot be written costs one warning,
    nothing else."""

    def __init__(self, directory: str, job: str, wall: Callable[[], float] = time.time) -> None:
        self.path = Path(directory) / NAME
        self.job = job
        self._wall = wall
        self._warned = False

    def closed(self, incident: commands.Closed, now: float) -> None:
        """Append an incident; `now` is on the clock of `incident.began`, which is written as Unix
        time."""
        self._append(
            {"kind": "incident", **asdict(incident), "began": self._wall() - (now - incident.began)}
        )

    def end(self, ok: bool, reason: str) -> None:
        self._append({"kind": "end", "ok": ok, "reason": reason})

    def _append(self, entry: dict[str, Any]) -> None:
        line = json.dumps({"time": self._wall(), "job": self.job, **entry}) + "\n"
        try:
            self.path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            # one write to a file opened for append: lines of two managers never mix
            descriptor = os.open(
                self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640
            )
            try:
                os.write(descriptor, line.encode())
            finally:
                os.close(descriptor)
        except (OSError, ValueError) as error:
            if not self._warned:
                self._warned = True
                reason = getattr(error, "strerror", None) or error
                remedy = "set TASKD_LOG_PATH to a directory that this user may write to"
                log.warning("%s cannot be written: %s; %s", self.path, reason, remedy)

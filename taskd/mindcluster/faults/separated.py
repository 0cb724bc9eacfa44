"""separated.jsonl: devices that are not used until an operator releases them. It is in the log
directory and outlives managers.

One JSON object per line; the last one about a device counts. taskd adds devices; operators only
release them (`taskd faults release`). An invalid line is skipped and counted.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taskd import logs
from taskd.mindcluster.faults.findings import read_regular

NAME = "separated.jsonl"
MOST_BYTES = 64 << 20


@dataclass(frozen=True)
class Entry:
    """A separated device: `code` is why, `time` since when (seconds since 1970), `until` when it
    is released automatically; None: never."""

    device: str
    code: int
    text: str
    time: float
    until: float | None = None


class Separated:
    """The journal at `directory`/separated.jsonl."""

    def __init__(
        self, directory: str | os.PathLike[str], wall: Callable[[], float] = time.time
    ) -> None:
        self.path = Path(directory) / NAME
        self._wall = wall

    def read(self) -> tuple[dict[str, Entry], int]:
        """Return the devices separated now, and how many lines are invalid. Raises OSError."""
        try:
            data = read_regular(self.path, MOST_BYTES, newest=True)
        except FileNotFoundError:
            return {}, 0
        found: dict[str, Entry] = {}
        damaged = 0
        for line in data.split(b"\n"):
            if not line.strip():
                continue
            try:
                device, entry = _entry(json.loads(line))
            except (ValueError, KeyError, TypeError, RecursionError):
                damaged += 1
                continue
            if entry is None:
                found.pop(device, None)
            else:
                found[device] = entry
        now = self._wall()
        return {d: e for d, e in found.items() if e.until is None or e.until > now}, damaged

    def separate(self, device: str, code: int, text: str, until: float | None = None) -> None:
        """Record that a device is separated. Raises OSError."""
        self._append(
            {"kind": "separated", "device": device, "code": code, "text": text, "until": until}
        )

    def release(self, device: str, by: str) -> None:
        """Record that a device is released. Raises OSError."""
        self._append({"kind": "released", "device": device, "by": by})

    def _append(self, entry: Mapping[str, Any]) -> None:
        self.path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        descriptor = logs.open_to_append(self.path)
        try:
            size = os.fstat(descriptor).st_size
            # a writer was killed in the middle of a line
            torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
            line = json.dumps({"time": self._wall(), **entry})
            os.write(descriptor, (("\n" if torn else "") + line + "\n").encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _entry(raw: Any) -> tuple[str, Entry | None]:
    """Parse a line. Raises ValueError, KeyError or TypeError for an invalid one."""
    device, kind = raw["device"], raw["kind"]
    if not isinstance(device, str) or not device or kind not in ("separated", "released"):
        raise ValueError("not an entry of this journal")
    if kind == "released":
        return device, None
    code, text, since, until = raw["code"], raw["text"], raw["time"], raw["until"]
    if (
        type(code) is not int
        or not isinstance(text, str)
        or not _moment(since)
        or not (until is None or _moment(until))
    ):
        raise ValueError("not an entry of this journal")
    return device, Entry(device, code, text, float(since), None if until is None else float(until))


def _moment(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < 1e11

"""Lines of a journal as records, whatever they hold.

A reader must be able to use a journal that a newer taskd has written, whose last line is torn, or
that somebody has edited: lines that are no records are counted and skipped, kinds and fields that
it does not know are left to who asks for them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MOST_BYTES = 8 << 20  # of a line; one of 10,000 ranks in eight rounds has 3 MB


@dataclass(frozen=True)
class Record:
    """A line. `time`: Unix time; `data`: the other fields."""

    kind: str
    time: float
    data: dict[str, Any] = field(default_factory=dict)

    def text(self, name: str) -> str:
        """A field as text, "" if it is none."""
        value = self.data.get(name)
        return value if isinstance(value, str) else ""

    def number(self, name: str, default: float = 0.0) -> float:
        value: Any = self.data.get(name)
        return float(value) if _is_number(value) else default

    def whole(self, name: str, default: int = 0) -> int:
        value = self.data.get(name)
        return value if type(value) is int else default

    def several(self, name: str) -> list[Any]:
        value = self.data.get(name)
        return list(value) if isinstance(value, list | tuple) else []

    def table(self, name: str) -> dict[str, Any]:
        value = self.data.get(name)
        return value if isinstance(value, dict) else {}


@dataclass
class Reader:
    """Reads a journal line by line. `damaged`: lines so far that are no records."""

    damaged: int = 0

    def lines(self, lines: Iterable[bytes]) -> Iterator[Record]:
        for line in lines:
            if not line.strip():
                continue
            record = _record(line)
            if record is None:
                self.damaged += 1
            else:
                yield record

    def files(self, files: Iterable[Path]) -> Iterator[Record]:
        """The records of several files, in order. Raises OSError."""
        for file in files:
            with open(file, "rb") as lines:
                yield from self.lines(_whole(lines))


def last_run(records: Iterable[Record]) -> list[Record]:
    """The records since the job was last started from nothing: the managers that followed the first
    one took a running job over."""
    run: list[Record] = []
    for record in records:
        repeated = record.data.get("repeated") is True or record.data.get("successor") is True
        if record.kind == "start" and not repeated:
            run.clear()
        run.append(record)
    return run


def _whole(lines: Any) -> Iterator[bytes]:
    """The lines of a file; one that is too long comes as one that is no record."""
    while line := lines.readline(MOST_BYTES):
        if line.endswith(b"\n") or len(line) < MOST_BYTES:
            yield line
            continue
        while (rest := lines.readline(MOST_BYTES)) and not rest.endswith(b"\n"):
            pass
        yield b"too long"


def _record(line: bytes) -> Record | None:
    try:
        entry = json.loads(line)
        kind, time = entry.pop("kind"), entry.pop("time")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    if not isinstance(kind, str) or not _is_number(time):
        return None
    return Record(kind, float(time), entry)


def _is_number(value: Any) -> bool:
    if type(value) not in (int, float):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:  # an int of many digits
        return False

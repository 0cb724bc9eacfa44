"""Reads lines of a journal as records, whatever they contain.

A reader must cope with a journal written by a newer taskd, with a torn last line, or edited by
hand: lines that are not records are counted and skipped; unknown kinds and fields are passed on.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from taskd import file_thread
from taskd.history import files

MOST_BYTES = 8 << 20  # of a line; one of 10,000 ranks in eight rounds has 3 MB
FAR = 1e10  # larger values are not valid times, ranks or steps


@dataclass(frozen=True)
class Record:
    """A line. `time`: Unix time; `data`: the other fields."""

    kind: str
    time: float
    data: dict[str, Any] = field(default_factory=dict)

    def text(self, name: str) -> str:
        """A field as text, "" if it is not text."""
        value = self.data.get(name)
        return value if isinstance(value, str) else ""

    def number(self, name: str, default: float = 0.0) -> float:
        value: Any = self.data.get(name)
        return float(value) if _is_number(value) else default

    def count(self, name: str) -> int:
        """A field that is a rank, a node, or a count; 0 if invalid."""
        return max(self.step(name), 0)

    def step(self, name: str) -> int:
        """A field that is a whole number of at least 0; -1 if invalid."""
        value = self.data.get(name)
        return value if type(value) is int and 0 <= value < FAR else -1

    def seconds(self, name: str) -> float:
        return min(max(self.number(name), 0.0), FAR)

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
        """The records of several files, in order. A manager may begin the next file meanwhile: all
        are opened before any is read, so that each is read once. Raises OSError."""
        with contextlib.ExitStack() as opened:
            for lines in [opened.enter_context(open(file, "rb")) for file in files]:
                yield from self.lines(_whole(lines))


def last_run(newest: Path) -> tuple[int, Record | None]:
    """The port of the manager that the last run in a journal began with, 0 if unknown; and how that
    run ended, None if it has not. Raises OSError."""
    port, end = 0, None
    file_thread.check(newest)
    with open(newest, "rb") as file:
        # the others, which may have 16 MiB, are not decoded
        marked = (line for line in _whole(file) if b'"start"' in line or b'"end"' in line)
        for record in Reader().lines(marked):
            if record.kind == "start":
                port, end = record.count("port"), None
            elif record.kind == "end":
                end = record
    return port, end


def repaired(directory: Path) -> list[dict[str, Any]]:
    """The entries of the incidents that were repaired, in the journal in `directory` that was
    written last."""
    newest = files.newest(directory)
    records = Reader().files(files.of(newest)) if newest is not None else ()
    return [
        {"time": record.time, **record.data}
        for record in records
        if record.kind == "incident" and record.text("result") == "repaired"
    ]


def _whole(lines: Any) -> Iterator[bytes]:
    """The lines of a file; one that is too long is returned as an invalid record."""
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

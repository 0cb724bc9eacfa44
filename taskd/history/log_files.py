"""Lines of taskd's logs, from the files beside a journal: those of a span of time.

The files are as large as logs.py lets them grow, and others may write to their directory: a link or
anything else that is no file is not followed, what is read is bounded, and bytes that are no log are
no lines.
"""

from __future__ import annotations

import calendar
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

OLDER = 5  # files of one log besides the newest, see logs.py
LOOK = 1 << 16  # bytes in which a line must begin
MOST = 1 << 20  # bytes that are read of one file
LINES, WIDE = 60, 500  # of one log, and characters of a line
_LINE = re.compile(rb"(\d{4})-(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d),(\d{3}) [A-Z]+ \d+ taskd")


@dataclass(frozen=True)
class Told:
    """What a log says: (Unix time, text) of each line. `more`: there are others in that time."""

    name: str
    lines: tuple[tuple[float, str], ...]
    more: bool = False


def between(directory: Path, name: str, begin: float, end: float, zone: int = 0) -> Told:
    """The lines of the log `name` from `begin` to `end`, Unix times. `zone`: seconds by which its
    times are ahead of UTC. A file that is missing or cannot be read has none."""
    found: list[tuple[float, str]] = []
    for age in range(OLDER, -1, -1):
        file = _open(directory / (f"{name}.log.{age}" if age else f"{name}.log"))
        if file is None:
            continue
        with file:
            try:
                for line in _lines(file, begin + zone, end + zone):
                    if len(found) == LINES:
                        return Told(name, tuple(found), True)
                    found.append((line[0] - zone, line[1]))
            except OSError:
                continue
    return Told(name, tuple(found))


def _open(path: Path) -> BinaryIO | None:
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        file = open(os.open(path, flags), "rb")
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    return None


def _lines(file: BinaryIO, begin: float, end: float) -> Iterator[tuple[float, str]]:
    """The lines of that span; the lines of a text that has several have the time of its first."""
    low, high = 0, os.fstat(file.fileno()).st_size
    while high - low > LOOK:
        middle = (low + high) // 2
        at = _first_time(file, middle)
        low, high = (low, middle) if at is None or at >= begin else (middle, high)
    file.seek(low)
    time = None
    for raw in file.read(MOST).splitlines():
        time = _time(raw) or time
        if time is None or time < begin:
            continue
        if time > end:
            return
        yield time, raw[: 4 * WIDE].decode(errors="replace")[:WIDE]


def _first_time(file: BinaryIO, offset: int) -> float | None:
    """The time of the first line that begins after `offset`."""
    file.seek(offset)
    for raw in file.read(LOOK).split(b"\n")[1:]:
        if (time := _time(raw)) is not None:
            return time
    return None


def _time(raw: bytes) -> float | None:
    found = _LINE.match(raw)
    if found is None:
        return None
    numbers = [int(number) for number in found.groups()]
    return calendar.timegm((*numbers[:6], 0, 0, 0)) + numbers[6] / 1000

"""Lines of taskd's logs, from the files beside a journal: those of a span of time.

The files are as large as logs.py lets them grow, and others may write to their directory: a link
or anything else that is no file is not followed, what is read is bounded, and bytes that are no log
are no lines.
"""

from __future__ import annotations

import calendar
import os
import re
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from taskd.history.facts import Incident
from taskd.history.model import Job

OLDER = 5  # files of one log besides the newest, see logs.py
LOOK = 1 << 16  # bytes in which a line must begin
MOST = 1 << 20  # bytes that are read of one file
LINES, WIDE = 60, 500  # of one log, and characters of a line
BEFORE, AFTER = 2.0, 1.0  # seconds
RANKS = 4  # whose logs are read
TOTAL = 1 << 20  # characters of all incidents
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
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return os.fdopen(fd, "rb")
    os.close(fd)
    return None


def _lines(file: BinaryIO, begin: float, end: float) -> Iterator[tuple[float, str]]:
    """The lines of that span; the lines of a text that has several have the time of its first."""
    low, high = 0, os.fstat(file.fileno()).st_size
    while high - low > LOOK:
        middle = (low + high) // 2
        at = _first_time(file, middle)
        low, high = (low, middle) if at is None or at >= begin else (middle, high)
    file.seek(low)
    at = None
    for raw in file.read(MOST).splitlines():
        at = _time(raw) or at
        if at is None or at < begin:
            continue
        if at > end:
            return
        yield at, raw[: 4 * WIDE].decode(errors="replace")[:WIDE]


def _first_time(file: BinaryIO, offset: int) -> float | None:
    """The time of the first line that begins after `offset`."""
    file.seek(offset)
    for raw in file.read(LOOK).split(b"\n")[1:]:
        if (at := _time(raw)) is not None:
            return at
    return None


def _time(raw: bytes) -> float | None:
    found = _LINE.match(raw)
    if found is None:
        return None
    numbers = [int(number) for number in found.groups()]
    try:
        return calendar.timegm((*numbers[:6], 0, 0, 0)) + numbers[6] / 1000
    except ValueError:  # such as month 13
        return None


def of_incidents(directory: Path, job: Job) -> dict[int, tuple[Told, ...]]:
    """By the place of each incident in `job`: the logs of the ranks that died or were replaced, of
    their nodes, and of the manager, from shortly before it to shortly after. The newest incidents
    first, until it is as much as can be read."""
    found: dict[int, tuple[Told, ...]] = {}
    left = TOTAL
    for at in range(len(job.incidents) - 1, -1, -1):
        incident = job.incidents[at]
        begin, end = incident.began - BEFORE, incident.ended + AFTER
        told = [between(directory, n, begin, end, _zone(job, begin)) for n in _names(job, incident)]
        found[at] = tuple(one for one in told if one.lines)
        left -= sum(len(text) for one in told for _, text in one.lines)
        if left < 0:
            break
    return found


def _names(job: Job, incident: Incident) -> list[str]:
    ranks = list(dict.fromkeys([d.rank for d in incident.deaths if d.rank >= 0] + incident.ranks))
    nodes = [*(job.places.of(rank)[0] for rank in ranks), *sorted(incident.lost)]
    agents = list(dict.fromkeys(node for node in nodes if node >= 0))
    return [
        *(f"worker-{rank}" for rank in ranks[:RANKS]),
        *(f"agent-{node}" for node in agents[:RANKS]),
        "manager",
    ]


def _zone(job: Job, at: float) -> int:
    """How far the logs' times are ahead of UTC; as here, where the journal does not say it."""
    said = next((about["zone"] for about in job.about.values() if "zone" in about), "")
    return int(said) if re.fullmatch(r"-?\d{1,5}", said) else time.localtime(at).tm_gmtoff

"""Whether a script fails in its set-up because of a defect: then no restart mends it, and thousands
are allowed.

Asked by each launcher about its own ranks. What ends a rank from outside (SIGKILL, SIGTERM) is no
defect of its script.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

LIMIT = 3  # starts in a row: two may be chance
# seconds; a rank that ends later was past its set-up: a job's ranks are waited for as long, see
# core.settings.Settings.form
LONG = 600.0
# SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGSEGV: what a process does to itself
FATAL = frozenset({-4, -6, -7, -8, -11})
_FRAME = re.compile(r'^ *File "(.*)", line (\d+)')


@dataclass(frozen=True)
class Failure:
    """`status` is the exit code, negative for a signal; `traceback` of the exception that ended the
    process, "" where none is known."""

    rank: int
    status: int
    traceback: str = ""


class SetUp:
    def __init__(self) -> None:
        # way -> starts in a row, and what it was the first time
        self._times: dict[tuple[object, ...], tuple[int, Failure]] = {}
        # the same of starts in which no rank ended, and all were restarted for a reason
        self._stuck: tuple[str, int, str] = ("", 0, "")

    def failed(self, failures: Iterable[Failure], seconds: float) -> Failure | None:
        """A start has failed after so many seconds, before every rank was protected. Returns what
        it was the first time that ranks ended in the way in which they have ended LIMIT times in a
        row, None otherwise."""
        self._stuck = ("", 0, "")
        own = [f for f in failures if f.status > 0 or f.status in FATAL] if seconds < LONG else []
        ways = {_way(f): f for f in sorted(own, key=lambda f: f.rank)[::-1]}
        self._times = {
            way: (self._times[way][0] + 1, self._times[way][1]) if way in self._times else (1, f)
            for way, f in ways.items()
        }
        return next((first for times, first in self._times.values() if times >= LIMIT), None)

    def stuck(self, reason: str) -> str:
        """A start was given up for `reason`, with every rank alive. Returns what it was the first
        time that this happened LIMIT times in a row, "" otherwise; ranks and generations may
        differ."""
        way = re.sub(r"[0-9]+", "N", reason)
        last, times, first = self._stuck
        self._stuck = (way, times + 1, first) if way == last else (way, 1, reason)
        return self._stuck[2] if self._stuck[1] >= LIMIT else ""

    def passed(self) -> None:
        """Every rank is protected."""
        self._times.clear()
        self._stuck = ("", 0, "")


def _way(failure: Failure) -> tuple[object, ...]:
    """Of all ranks that raise the same exception some are ended by their launcher before they can;
    the text of one may name a port."""
    frames, name = read(failure.traceback)
    return (failure.status, name, *frames) if frames else (failure.status, failure.rank)


def read(traceback: str) -> tuple[tuple[tuple[str, int], ...], str]:
    """The frames of a traceback as Python prints it, and the name of the exception."""
    frames, name = [], ""
    for line in traceback.splitlines():
        if found := _FRAME.match(line):
            frames.append((found[1], int(found[2])))
            name = ""
        elif frames and not name and line[:1].strip():
            name = line.partition(":")[0]
    return tuple(frames), name


def reason(first: Failure) -> str:
    """Why the job ends, as one sentence."""
    frames, name = read(first.traceback)
    where = f", {name} in {frames[-1][0]}, line {frames[-1][1]}" if frames else ""
    how = f"exit status {first.status}" if first.status >= 0 else f"signal {-first.status}"
    return (
        f"The job ends: rank {first.rank} failed before all ranks were protected, and {LIMIT}"
        f" starts in a row ended so ({how}{where}): a defect of the script or its surroundings that"
        " no restart mends. Correct it and start the job again."
    )

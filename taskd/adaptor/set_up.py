"""Detects a script whose set-up fails because of a defect, which a restart does not fix, though
thousands may be allowed.

Each launcher checks its own ranks. A rank killed from outside (SIGKILL, SIGTERM) is no evidence of
a defect.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass

LIMIT = 3  # starts in a row: two may be chance
# seconds; a rank that fails later was past its set-up: that is how long a job's ranks are awaited,
# see core.settings.Settings.form
LONG = 600.0
# SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGSEGV: what a process does to itself
FATAL = frozenset({-4, -6, -7, -8, -11})
_FRAME = re.compile(r'^ *File "(.*)", line (\d+)')


@dataclass(frozen=True)
class Failure:
    """The end of one rank. `status` is the exit code, negative for a signal; `traceback`: of the
    exception that ended the process, "" if unknown."""

    rank: int
    status: int
    traceback: str = ""


class SetUp:
    def __init__(
        self, first_only: bool = False, when: str = "before all ranks were protected"
    ) -> None:
        """`first_only`: all ranks are stopped when the first has failed, so that it is chance which
        of them that is. `when`: which failures are counted, in words."""
        self._first_only, self._when = first_only, when
        self.began = 0.0  # when the ranks were last started
        # way -> starts in a row, and the first failure
        self._times: dict[tuple[object, ...], tuple[int, Failure]] = {}
        # the same for starts given up with every rank alive: way, starts in a row, first reason
        self._stuck: tuple[str, int, str] = ("", 0, "")

    def starting(self) -> None:
        """Note that the ranks are about to be started."""
        self.began = time.monotonic()

    def in_vain(self, failures: Iterable[Failure]) -> str:
        """Why another start cannot help after these failures, with the first traceback; "" if it
        may."""
        first = self.failed(failures, time.monotonic() - self.began)
        if first is None:
            return ""
        why = (
            f"The job ends: rank {first.rank} failed {self._when}, and {LIMIT} starts in a row"
            f" ended alike ({how(first)}): a defect of the script or its environment that a restart"
            " does not fix. Fix it and start the job again."
        )
        trace = first.traceback.rstrip()
        return f"{why}\n\nRank {first.rank}, the first time:\n{trace}" if trace else why

    def failed(self, failures: Iterable[Failure], seconds: float) -> Failure | None:
        """Count a start that failed after `seconds`, before every rank was protected. Once ranks
        have failed in the same way LIMIT times in a row, returns the first such failure, otherwise
        None."""
        self._stuck = ("", 0, "")
        own = [f for f in failures if f.status > 0 or f.status in FATAL] if seconds < LONG else []
        ways = {self._way(f): f for f in sorted(own, key=lambda f: f.rank)[::-1]}
        self._times = {
            way: (self._times[way][0] + 1, self._times[way][1]) if way in self._times else (1, f)
            for way, f in ways.items()
        }
        return next((first for times, first in self._times.values() if times >= LIMIT), None)

    def stuck(self, reason: str) -> str:
        """Count a start given up for `reason`, with every rank alive. After LIMIT times in a row,
        returns the first reason, otherwise ""; ranks and generations may differ."""
        way = re.sub(r"[0-9]+", "N", reason)
        last, times, first = self._stuck
        self._stuck = (way, times + 1, first) if way == last else (way, 1, reason)
        return self._stuck[2] if self._stuck[1] >= LIMIT else ""

    def passed(self) -> None:
        """Start counting anew: every rank is protected."""
        self._times.clear()
        self._stuck = ("", 0, "")

    def _way(self, failure: Failure) -> tuple[object, ...]:
        """Return the way a rank failed, not its number or text: the launcher kills some of the
        ranks before they raise the same exception, and its text may contain a port."""
        frames, name = read(failure.traceback)
        if frames:
            return (failure.status, name, *frames)
        return (failure.status, -1 if self._first_only else failure.rank)


def read(traceback: str) -> tuple[tuple[tuple[str, int], ...], str]:
    """Return the frames of a traceback as Python prints it, and the exception's name."""
    frames, name = [], ""
    for line in traceback.splitlines():
        if found := _FRAME.match(line):
            frames.append((found[1], int(found[2])))
            name = ""
        elif frames and not name and line[:1].strip():
            name = line.partition(":")[0]
    return tuple(frames), name


def how(failure: Failure) -> str:
    """Describe how a rank failed."""
    frames, name = read(failure.traceback)
    where = f", {name} in {frames[-1][0]}, line {frames[-1][1]}" if frames else ""
    status = failure.status
    return (f"exit status {status}" if status >= 0 else f"signal {-status}") + where

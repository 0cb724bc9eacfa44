"""Judges whether a job is stuck: no rank makes progress, and none is behind the others.

A file system that does not answer, a deadlock in code that all ranks run, or a compilation without
an end leaves all ranks in the same step, so no progress probe finds one that the others wait for. A
long step, an evaluation or the first compilation looks the same from outside, except that a
processor is used, for which the limit is longer, or that the script has announced it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from taskd.core.abbreviate import abbreviate
from taskd.core.hang.progress_probe import IDLE, Answers
from taskd.messages.from_agent import ProgressReport

# how much longer the limit is where ranks use processors
WORKING = 3.0
MOVED = 1.0  # seconds by which times of progress differ that two messages tell
NOWHERE = "a place that is not known"
_LINE = re.compile(r":\d+(?= \()")


class Standstill:
    """One job's. `limit`: seconds; None: it never counts as stuck."""

    def __init__(self, limit: float | None) -> None:
        self._limit = limit
        self._answers: Answers = {}
        self._since = self._idle_since = self._looked = 0.0

    def forget(self) -> None:
        """Ranks are about to be moved."""
        self._answers = {}

    def seconds(self, now: float) -> float:
        """Since the last progress of any rank."""
        return now - self._since

    def found(self, answers: Answers, now: float, least: float | None = None) -> bool:
        """Whether the job is stuck, by these answers of all ranks to a progress probe. `least`:
        seconds that the ranks may take at least, in place of their own limits."""
        before, self._answers = self._answers, dict(answers)
        same = before.keys() == answers.keys() and all(
            _place(before[r]) == _place(a) for r, a in answers.items()
        )
        since = now - min((a.seconds for a in answers.values()), default=0.0)
        if any(a.waiting or a.patient or a.left for a in answers.values()):
            self._since = self._idle_since = now
        elif not same:
            # the begin of a collective is no progress that the seconds count from
            self._since = max(since, self._looked) if before else since
            self._idle_since = now
        elif since > self._since + MOVED:
            self._since = self._idle_since = since
        elif any(a.cpu - before[r].cpu > IDLE * (now - self._looked) for r, a in answers.items()):
            self._idle_since = now
        self._looked = now
        if self._limit is None or not answers:
            return False
        own = [a.limit for a in answers.values()] if least is None else [least]
        limit = max(self._limit, *own)
        return now - self._idle_since >= limit or now - self._since >= WORKING * limit


def _place(a: ProgressReport) -> tuple[object, ...]:
    return a.incarnation, a.step, a.collectives, a.waiting


def places(answers: Answers) -> dict[str, list[int]]:
    """The ranks by where they are, the most first. Lines of one function are one place: a loop has
    several."""
    found: dict[str, list[int]] = {}
    first: dict[str, str] = {}  # by the place without its line
    for rank, a in sorted(answers.items()):
        where = a.where or NOWHERE
        found.setdefault(first.setdefault(_LINE.sub("", where), where), []).append(rank)
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def apart(found: Mapping[str, list[int]]) -> dict[int, str]:
    """The ranks that are not where most are, each with where it is; none if most are nowhere."""
    ranks = sum(map(len, found.values()))
    most = next(iter(found.values()), [])
    if 2 * len(most) <= ranks:
        return {}
    return {r: where for where, there in list(found.items())[1:] for r in there}


def listed(found: Mapping[str, list[int]]) -> str:
    """In words."""
    return "; ".join(
        f"rank {ranks[0]}: {where}" if len(ranks) == 1 else f"ranks [{abbreviate(ranks)}]: {where}"
        for where, ranks in found.items()
    )

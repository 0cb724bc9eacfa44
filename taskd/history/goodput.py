"""Accounts for a job's time, from its journal, and computes its goodput: the share of the time,
since every rank was first in its loop, spent on steps that were new and were kept.
report/figures.py has the same definition, for a journal as a whole; model.py says when what begins.

Every moment counts once, as the first of these that applies:

starting   from the start of the job, or a restart of all ranks, until every rank is in its loop
incident   from the standstill until every rank has committed the interrupted step
paused     from a pause until the ranks continue
repeated   steps that a repair or a restart has taken back are repeated
slow       while the others wait for a slow rank, that share of each step
shrunk     while some ranks are away and a step takes `shares` times as long, all but one of so many
           parts of the time
training   all the rest

The attempt that a fault interrupts counts as training, and its repetition as incident. A committed
step that a repair rolls back counts as the usual attempt of the median rank. After a restart of all
ranks, time is repeated until a `progress` entry shows the step that had been reached. While no
manager runs, the ranks train.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

STARTING, INCIDENT, PAUSED, REPEATED, SLOW, SHRUNK, TRAINING = KINDS = (
    "starting",
    "incident",
    "paused",
    "repeated",
    "slow",
    "shrunk",
    "training",
)
MOST_REPEATED = 7 * 86_400.0  # seconds; more is a journal that is wrong


@dataclass
class Spent:
    """`seconds`: spent on each of KINDS, up to `time`, which is Unix time. `slow`: the share of a
    step that is lost to slow ranks. `shares`: a step takes up to so many times as long as in a full
    job."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(KINDS, 0.0))
    time: float = 0.0
    slow: float = 0.0
    shares: int = 1
    _before: float = 0.0  # seconds until every rank was in its loop for the first time
    _again: float = 0.0  # seconds of training that are repetition
    _step: int = -1  # the highest that all ranks had come to
    _peak: int = -1  # the step before which all is repeated
    _usual: float = 0.0

    @property
    def goodput(self) -> float:
        """From 0 to 1; 0 before any time has passed in the ranks' loops."""
        total = sum(self.seconds.values()) - self._before
        return self.seconds[TRAINING] / total if total > 0 else 0.0

    def until(self, time: float, kind: str) -> None:
        """Account all time until then to `kind`; some of the apparent training is repetition, or
        takes longer because ranks are away."""
        passed = max(time - self.time, 0.0)
        self.time += passed
        if kind == TRAINING and self._step < self._peak:
            kind = REPEATED
        elif kind == TRAINING:
            again = min(passed, self._again)
            self._again -= again
            self.seconds[REPEATED] += again
            for part, seconds in self._parts(passed - again):
                self.seconds[part] += seconds
            return
        self.seconds[kind] += passed

    def _parts(self, seconds: float) -> Iterator[tuple[str, float]]:
        """What time that seems to be training is."""
        slow = seconds * self.slow
        yield SLOW, slow
        rest = seconds - slow
        yield SHRUNK, rest - rest / self.shares
        yield TRAINING, rest / self.shares

    def begin(self) -> None:
        """Every rank is in its loop for the first time."""
        self._before = self.seconds[STARTING]

    def late(self, seconds: float, kind: str) -> None:
        """A fault is older than its entry: move that time, which was accounted to the activity
        before."""
        if kind == TRAINING and (self._step < self._peak or self._again > 0):
            kind = REPEATED
        seconds = max(seconds, 0.0)
        if kind == TRAINING:
            for part, some in self._parts(seconds):
                self._move(part, some, INCIDENT)
        elif kind != STARTING:
            self._move(kind, seconds, INCIDENT)

    def slower(self, seconds: float, share: float) -> None:
        """A rank is named as slow that has been so for `seconds` of training."""
        self._move(TRAINING, max(seconds, 0.0) * share, SLOW)

    def _move(self, kind: str, seconds: float, to: str) -> None:
        seconds = min(seconds, self.seconds[kind])
        self.seconds[kind] -= seconds
        self.seconds[to] += seconds

    def repeat(self, step: int, reached: int) -> None:
        """A repair has rolled the job back from `reached` to `step`; -1 if unknown."""
        if 0 <= step < reached:
            again = self._again + (reached - step) * self._usual
            self._again = min(again, MOST_REPEATED)

    def restart(self) -> None:
        """All ranks start again."""
        self._peak, self._step, self._again = max(self._peak, self._step), -1, 0.0

    def progress(self, step: int, usual: float) -> None:
        """All ranks have come to `step`; an attempt usually takes `usual` seconds."""
        self._step, self._usual = step, usual

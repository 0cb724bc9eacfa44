"""One code on one device over time: how often it was present, and for how long. In seconds on any
monotonic clock."""

from __future__ import annotations

import math
from collections import deque

from taskd.mindcluster.faults.customization import Duration, Frequency
from taskd.mindcluster.levels import Level


def _after(moment: float) -> float:
    """The first moment after `moment`: a limit must be exceeded, not only reached."""
    return math.nextafter(moment, math.inf)


class Count:
    """FaultFrequency. Keeps only the newest `times` occurrences, since no others matter."""

    def __init__(self, rule: Frequency) -> None:
        self.rule = rule
        self.often = False  # the level applies
        self._occurred: deque[float] = deque(maxlen=rule.times)
        self._recovered: float | None = None  # None: the code is present

    def occur(self, at: float) -> None:
        self.look(at)
        self._occurred.append(at)
        self._recovered = None
        self.often |= self._full(at)

    def recover(self, at: float) -> None:
        self.look(at)
        if self._recovered is None:
            self._recovered = at

    def look(self, now: float) -> None:
        due = self.due
        if due is not None and now >= due:
            self.often = False

    @property
    def due(self) -> float | None:
        """When the level is withdrawn if nothing happens until then."""
        rule = self.rule
        if (
            not self.often
            or self._recovered is None
            or (rule.release is None and rule.level is Level.MANUALLY_SEPARATE)
        ):
            return None
        fewer = (
            _after(self._occurred[0] + rule.window)
            if len(self._occurred) == rule.times
            else self._recovered
        )
        return max(
            fewer,
            _after(self._recovered + rule.release) if rule.release is not None else self._recovered,
        )

    @property
    def history(self) -> tuple[tuple[float, ...], float | None]:
        """The newest occurrences, and when the code was last gone; None: it is present."""
        return tuple(self._occurred), self._recovered

    def recall(self, occurred: tuple[float, ...], recovered: float | None, often: bool) -> None:
        """Take over a history, in place of this one."""
        self._occurred.clear()
        self._occurred.extend(sorted(occurred))
        self._recovered, self.often = recovered, often

    def _full(self, now: float) -> bool:
        return (
            len(self._occurred) == self.rule.times and self._occurred[0] >= now - self.rule.window
        )

    def under(self, rule: Frequency, now: float) -> Count:
        """The same history under another rule."""
        other = Count(rule)
        other._occurred.extend(self._occurred)
        other._recovered = self._recovered
        other.often = other._full(now) or (self.often and rule.level is self.rule.level)
        return other


class Span:
    """FaultDuration. A fault that returns within `recover` seconds counts as never absent."""

    def __init__(self, rule: Duration) -> None:
        self.rule = rule
        self.long = False  # the level applies
        self._occurred: float | None = None
        self._recovered: float | None = None

    def occur(self, at: float) -> None:
        self.look(at)
        if self.long:
            self._recovered = None
        elif self._occurred is None:
            self._occurred = at

    def recover(self, at: float) -> None:
        self.look(at)
        if not self.long:
            self._occurred = None
        elif self._recovered is None:
            self._recovered = at

    def look(self, now: float) -> None:
        due = self.due
        if due is None or now < due:
            return
        self.long = not self.long
        if not self.long:
            self._occurred = self._recovered = None

    @property
    def due(self) -> float | None:
        if self.long:
            return None if self._recovered is None else _after(self._recovered + self.rule.recover)
        return None if self._occurred is None else _after(self._occurred + self.rule.timeout)

    @property
    def history(self) -> tuple[float | None, float | None]:
        """Since when the code is present, and when it was gone."""
        return self._occurred, self._recovered

    def recall(self, occurred: float | None, recovered: float | None, long: bool) -> None:
        """Take over a history, in place of this one."""
        self._occurred, self._recovered, self.long = occurred, recovered, long

    def under(self, rule: Duration) -> Span:
        other = Span(rule)
        other.long, other._occurred, other._recovered = self.long, self._occurred, self._recovered
        return other

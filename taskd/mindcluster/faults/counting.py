"""One code on one device over time: how often it was present, and for how long. In seconds on any
clock that does not go back. The rule comes with each call: it may change while the history stays.
"""

from __future__ import annotations

import math
from typing import Annotated

from msgspec import Meta, Struct

from taskd.mindcluster.faults.customization import Duration, Frequency
from taskd.mindcluster.levels import Level

MOST = 100  # occurrences of a code that any rule counts
Moment = Annotated[float, Meta(ge=-1e12, le=1e12)]


def _after(moment: float) -> float:
    """The first moment after `moment`: a limit must be exceeded, not only reached."""
    return math.nextafter(moment, math.inf)


class Count(Struct, omit_defaults=True, forbid_unknown_fields=True):
    """FaultFrequency. `occurred`: the newest occurrences, as many as the rule needs. `recovered`:
    since when the code is absent; None: it is present. `often`: the level applies."""

    occurred: Annotated[list[Moment], Meta(max_length=MOST)] = []
    recovered: Moment | None = None
    often: bool = False

    def occur(self, rule: Frequency, at: float) -> None:
        self.advance(rule, at)
        self.occurred = [*self.occurred, at][-rule.times :]
        self.recovered = None
        self.often |= self._full(rule, at)

    def recover(self, rule: Frequency, at: float) -> None:
        self.advance(rule, at)
        if self.recovered is None:
            self.recovered = at

    def advance(self, rule: Frequency, now: float) -> None:
        if (due := self.due(rule)) is not None and now >= due:
            self.often = False

    def due(self, rule: Frequency) -> float | None:
        """When the level is withdrawn if nothing happens until then."""
        if not self.often or self.recovered is None:
            return None
        if rule.release is None and rule.level is Level.MANUALLY_SEPARATE:
            return None
        absent = self.recovered if rule.release is None else _after(self.recovered + rule.release)
        if len(self.occurred) < rule.times:
            return max(self.recovered, absent)
        return max(_after(self.occurred[-rule.times] + rule.window), absent)

    def change(self, before: Frequency, rule: Frequency, now: float) -> None:
        """Another rule is in force."""
        self.often = self._full(rule, now) or (self.often and rule.level is before.level)

    def _full(self, rule: Frequency, now: float) -> bool:
        found = self.occurred[-rule.times :]
        return len(found) == rule.times and found[0] >= now - rule.window


class Span(Struct, omit_defaults=True, forbid_unknown_fields=True):
    """FaultDuration. A fault that returns within `recover` seconds counts as never absent.
    `occurred`: since when the code is present, until the level applies: `long`; then `recovered`:
    since when it is absent."""

    occurred: Moment | None = None
    recovered: Moment | None = None
    long: bool = False

    def occur(self, rule: Duration, at: float) -> None:
        self.advance(rule, at)
        if self.long:
            self.recovered = None
        elif self.occurred is None:
            self.occurred = at

    def recover(self, rule: Duration, at: float) -> None:
        self.advance(rule, at)
        if not self.long:
            self.occurred = None
        elif self.recovered is None:
            self.recovered = at

    def advance(self, rule: Duration, now: float) -> None:
        due = self.due(rule)
        if due is None or now < due:
            return
        self.long = not self.long
        if not self.long:
            self.occurred = self.recovered = None

    def due(self, rule: Duration) -> float | None:
        if self.long:
            return None if self.recovered is None else _after(self.recovered + rule.recover)
        return None if self.occurred is None else _after(self.occurred + rule.timeout)

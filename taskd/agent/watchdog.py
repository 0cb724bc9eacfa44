"""Which ranks of the node make no progress, from the times in the state page. A decision without
side effects: no page, no clock here.

Only says *that* a rank makes none: it may be at fault or wait for the one that is. The manager's
progress probe finds out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from taskd.cython_api import slot
from taskd.cython_api.page import View

TRAINING = frozenset({slot.COMPUTING, slot.UPDATING, slot.FETCHING})
# where ranks wait on purpose, for each other or for us
WAITING = frozenset({slot.INTERRUPTED, slot.PAUSED, slot.DONE})


@dataclass(frozen=True)
class Limits:
    """In seconds. A rank in a step may take `factor` times its usual step, but never less than
    `least` (None: no rank is ever overdue); its first two steps, which may compile, `first`; code
    between two steps, an evaluation, `between`."""

    least: float | None = 2.0
    factor: float = 3.0
    first: float = 600.0
    between: float = 600.0


@dataclass
class Watchdog:
    """Looks at `View`s; times are of CLOCK_MONOTONIC, in seconds."""

    limits: Limits = field(default_factory=Limits)
    holding: bool = False  # ranks have been told to stand before a step
    _floor: float = 0.0
    # when a rank is complained of again, by local rank
    _next: dict[int, float] = field(default_factory=dict)

    def excuse(self, now: float) -> None:
        """The machine, or this process, has stood still: silence before `now` does not count."""
        self._floor = now

    def waiting(self, view: View) -> bool:
        """Whether the rank stands still on purpose. One that is paused must go on when the pause is
        over."""
        return view.phase in WAITING and (view.phase != slot.PAUSED or self.holding)

    def limit(self, view: View) -> float | None:
        """How long the rank may stay without progress where it is; None: forever."""
        if self.limits.least is None:
            return None
        if view.phase == slot.PAUSED and not self.holding:
            return self.limits.least
        if view.phase == slot.COMMITTED:
            return self.limits.between
        if view.phase not in TRAINING:
            return None
        return (
            max(self.limits.factor * view.usual_ns / 1e9, self.limits.least)
            if view.usual_ns
            else self.limits.first
        )

    def silence(self, view: View, now: float) -> float:
        return max(now - max(view.heartbeat_ns / 1e9, self._floor), 0.0)

    def due(self, view: View, stopped: bool = False) -> float | None:
        """When the rank will be overdue, unless it makes progress. `stopped`: the kernel does not
        let it run, so that it does not matter whether what it does may take long."""
        limit = self.limit(view)
        if limit is None:
            return None
        if stopped and self.limits.least is not None:
            limit = self.limits.least
        return max(max(view.heartbeat_ns / 1e9, self._floor) + limit, view.until_ns / 1e9)

    def overdue(self, view: View, now: float, stopped: bool = False) -> bool:
        due = self.due(view, stopped)
        return due is not None and now >= due

    def too_long(self, seconds: float) -> bool:
        """Whether a process may not have been stopped by a signal for `seconds`."""
        return self.limits.least is not None and seconds >= self.limits.least

    def left(self, view: View, now: float) -> float:
        """Seconds that a rank in user code may still take before it counts as hung; a minute where
        it never does."""
        due = self.due(view)
        return 60.0 if due is None else max(due - now, 0.0)

    def complaints(self, views: Mapping[int, View], now: float) -> tuple[list[int], float | None]:
        """Local ranks that are overdue and were not complained of a moment ago; and when to look
        again."""
        found: list[int] = []
        times: list[float] = []
        for local, view in views.items():
            due = self.due(view)
            if due is None:
                continue
            if now < due:
                self._next.pop(local, None)
                times.append(due)
                continue
            again = self._next.get(local, 0.0)
            if now >= again:
                found.append(local)
                limit = self.limit(view)
                again = self._next[local] = now + max(limit if limit is not None else 0.0, 1.0)
            times.append(again)
        return found, min(times, default=None)

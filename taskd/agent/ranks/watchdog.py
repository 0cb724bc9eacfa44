"""Finds the ranks of the node that make no progress, from the times in the state page. A decision
without side effects: no page, no clock here.

It finds only *that* a rank makes none: the rank may be at fault, or wait for the one at fault. The
manager's progress probe finds out which.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from taskd.cython_api import slot
from taskd.cython_api.page import View

TRAINING = frozenset({slot.COMPUTING, slot.UPDATING, slot.FETCHING})
# between two steps, or two loops, in the script's own code
BETWEEN = frozenset({slot.COMMITTED, slot.LEFT})
# the interpreter ends by itself
ENDING = frozenset({slot.DONE, slot.QUIT})
# where ranks wait, for each other or for the agent
WAITING = frozenset({slot.INTERRUPTED, slot.PAUSED, *ENDING})


@dataclass(frozen=True)
class HangLimits:
    """Limits in seconds. A rank in a step may take `factor` times its usual step, but never less
    than `least` (None: no rank is ever overdue); its first two steps, which may compile, `first`;
    code between two steps, such as an evaluation, `between`."""

    least: float | None = 2.0
    factor: float = 3.0
    first: float = 600.0
    between: float = 600.0


@dataclass
class Watchdog:
    """Judges ranks by their `View`s; times are of CLOCK_MONOTONIC, in seconds."""

    limits: HangLimits = field(default_factory=HangLimits)
    holding: bool = False  # ranks have been ordered to pause before a step
    _floor: float = 0.0
    # when a rank is reported again, by local rank
    _next: dict[int, float] = field(default_factory=dict)

    def excuse(self, now: float) -> None:
        """Ignore silence before `now`: the machine, or this process, has stood still."""
        self._floor = now

    def waiting(self, view: View) -> bool:
        """Whether the rank is in a phase in which it waits. A paused rank must continue when the
        pause is over."""
        return view.phase in WAITING and (view.phase != slot.PAUSED or self.holding)

    def limit(self, view: View) -> float | None:
        """How long the rank may make no progress in its phase; None: forever."""
        if self.limits.least is None:
            return None
        if view.phase == slot.PAUSED and not self.holding:
            return self.limits.least
        if view.phase in BETWEEN:
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

    def idle(self, view: View, now: float) -> float | None:
        """For how long the rank has stood still: since its last progress, if a step usually takes
        it less; 0: it may be at work. None: it is where ranks wait."""
        if view.phase in BETWEEN:
            return 0.0
        # one whose collective has failed is INTERRUPTED before anybody has ordered it
        if view.phase not in (*TRAINING, slot.INTERRUPTED):
            return None
        silence, usual = self.silence(view, now), view.usual_ns / 1e9
        return silence if 0 < usual < silence and view.until_ns / 1e9 <= now else 0.0

    def due(self, view: View, stopped: bool = False) -> float | None:
        """When the rank will be overdue, unless it makes progress. `stopped`: by a signal, so it
        does not matter whether its work may take long."""
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
        """Whether `seconds` is too long for a process to be stopped by a signal."""
        return self.limits.least is not None and seconds >= self.limits.least

    def left(self, view: View, now: float) -> float:
        """Seconds left to a rank in user code before it counts as hung; a minute if it never
        does."""
        due = self.due(view)
        return 60.0 if due is None else max(due - now, 0.0)

    def complaints(self, views: Mapping[int, View], now: float) -> tuple[list[int], float | None]:
        """Local ranks that are overdue and were not reported a moment ago; and when to look
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

"""Measures the offset of an agent's clock from the manager's, with an error bound.

The manager asks for the time and notes its own; the agent answers at once with its time; the
manager notes when the answer arrives. The agent's clock was read at some moment between the two, so
their middle is wrong by at most half the round trip, however the delay is split (as in NTP). Delays
widen the bound; they never invalidate it. Clocks drift, so the bound also grows with the time
since.
"""

from __future__ import annotations

from dataclasses import dataclass

# Two clocks that are each at most this far from the true second, and the kernel's slewing of
# CLOCK_MONOTONIC towards NTP, which is at most 500 ppm for each of the two.
DRIFT = 1e-3
OFTEN, SELDOM = 3.0, 60.0  # seconds between two questions, of the first FEW and later
FEW = 4
PATIENCE = 30.0  # seconds; an answer after that is of no use


@dataclass(frozen=True)
class Offset:
    """`seconds` that the other clock is ahead, off by at most `bound` when it was `measured`."""

    seconds: float
    bound: float
    measured: float

    def bound_at(self, now: float) -> float:
        return self.bound + DRIFT * max(now - self.measured, 0.0)


@dataclass
class Clock:
    """An agent's clock as the manager knows it."""

    offset: Offset | None = None
    _asked: float = 0.0  # when the question under way was asked; 0: none is
    _next: float = 0.0
    _questions: int = 0

    def due(self, now: float) -> bool:
        return now >= self._next

    def ask(self, now: float) -> float:
        """Note a question; return its time."""
        self._questions += 1
        self._asked, self._next = now, now + (OFTEN if self._questions < FEW else SELDOM)
        return now

    def answered(self, asked: float, at: float, now: float) -> bool:
        """Handle an answer sent at `at` on the agent's clock. Returns whether it counts: it answers
        the last question and narrows the bound."""
        if asked != self._asked or not 0.0 < asked <= now <= asked + PATIENCE:
            return False
        self._asked = 0.0
        half = (now - asked) / 2
        # the agent's clock may have been read as long ago as it was asked
        found = Offset(at - (asked + half), half + DRIFT * (now - asked), now)
        if self.offset is not None and self.offset.bound_at(now) < found.bound:
            return False
        self.offset = found
        return True

    def ours(self, at: float, now: float) -> float:
        """Convert a time of the agent's clock to ours, at most `now`; `now` if the offset is
        unknown."""
        return now if self.offset is None or not at else min(at - self.offset.seconds, now)

    def bound(self, now: float) -> float | None:
        """How far off `ours` may be, in seconds; None if the offset is unknown."""
        return None if self.offset is None else self.offset.bound_at(now)

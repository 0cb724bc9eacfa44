"""What one end says arrives at the other once and in order, whatever becomes of the connection
between them.

A connection that breaks takes with it what was under way, in both directions, and neither end knows
how much that was. So each numbers what must not be lost and keeps it until the other end has said
how far it has heard. After a new connection nothing numbered is sent before that is known; then
everything after it is said again. What is said twice is known by its number. What is true at the
moment only (a heartbeat, an answer to a progress probe) has no number: it is said again anyway, or
not needed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass
class Outbox(Generic[T]):
    """What one end has said. `in_step`: all of it was handed to the present connection, and the
    next may follow."""

    number: int = 0  # of the last
    in_step: bool = True
    # what the other end is not known to have heard
    kept: deque[tuple[int, T]] = field(default_factory=deque)
    _last: int = -1  # what it said last that it has heard

    def add(self, said: T, number: int) -> bool:
        """Keep what is said under `number`; whether it may be sent at once."""
        self.number = abs(number)
        self.kept.append((number, said))
        return self.in_step

    def acknowledge(self, number: int) -> list[tuple[int, T]]:
        """The other end has heard everything up to `number`: what is to be said again, in order."""
        while self.kept and abs(self.kept[0][0]) <= number:
            self.kept.popleft()
        # told the same twice, though there was more to hear: that is lost
        again = not self.in_step or number == self._last
        self.in_step, self._last = True, number
        return list(self.kept) if again else []

    def clear(self) -> None:
        """The other end is another one, which is told everything anew."""
        self.kept.clear()
        self.in_step, self._last = True, -1


@dataclass
class Inbox:
    """What one end has heard. `gaps`: the other end numbers for many, so that numbers are left out;
    it keeps the order by waiting to be told how far we have heard before it sends over a new
    connection."""

    number: int = 0
    gaps: bool = False

    def take(self, number: int) -> bool:
        """Whether this is news, and the next. A number below 0 opens: nothing that was said before
        is needed, or will come."""
        ahead = abs(number) - self.number
        if ahead < 1 or (ahead > 1 and not self.gaps and number > 0):
            return False
        self.number = abs(number)
        return True

"""Delivers messages exactly once and in order over connections that may break.

A broken connection loses the messages in flight, in both directions, and neither end knows how
many. So each end numbers messages that must not be lost and keeps them until the other end has
acknowledged them. Over a new connection nothing numbered is sent before the acknowledgment is in;
then everything after it is sent again. Duplicates are detected by their numbers. A message that is
valid only at the moment (a heartbeat, an answer to a progress probe) has no number: it is repeated
anyway, or not needed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass
class Outbox(Generic[T]):
    """The messages that one end has sent. `in_step`: all were handed to the current connection, and
    the next may follow."""

    number: int = 0  # of the last message
    in_step: bool = True
    # messages not acknowledged yet
    kept: deque[tuple[int, T]] = field(default_factory=deque)
    _last: int = -1  # the last number acknowledged

    def add(self, said: T, number: int) -> bool:
        """Keep a message under `number`; return whether it may be sent at once."""
        self.number = abs(number)
        self.kept.append((number, said))
        return self.in_step

    def acknowledge(self, number: int) -> list[tuple[int, T]]:
        """Drop the messages up to `number`; return those to send again, in order."""
        while self.kept and abs(self.kept[0][0]) <= number:
            self.kept.popleft()
        # the same acknowledgment twice although more was sent: the rest is lost
        again = not self.in_step or number == self._last
        self.in_step, self._last = True, number
        return list(self.kept) if again else []

    def clear(self) -> None:
        """Start anew: the other end is a different process and gets everything."""
        self.kept.clear()
        self.in_step, self._last = True, -1


@dataclass
class Inbox:
    """How far one end has received. `gaps`: the sender's numbers are shared among several receivers
    and so have gaps; it keeps the order by waiting for our acknowledgment before it sends over a
    new connection."""

    number: int = 0
    gaps: bool = False

    def take(self, number: int) -> bool:
        """Whether the message is new and the next in order. A negative number opens a new series:
        no earlier message is needed or will arrive."""
        ahead = abs(number) - self.number
        if ahead < 1 or (ahead > 1 and not self.gaps and number > 0):
            return False
        self.number = abs(number)
        return True

"""Tests quickly whether any of very many ranks is still pending, after each of them has reported.

A job has tens of thousands of ranks, and each reports that it has stopped: a full scan each time
would check some 10^9 ranks. Those found pending are remembered, one of them is checked first, and a
full scan is repeated only when none of these is pending. The answer always equals that of a full
scan, and callers need not announce changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable


class PendingSet:
    def __init__(self) -> None:
        self._known: list[int] = []  # pending at the last full scan

    def any(self, everybody: Iterable[int], waits: Callable[[int], bool]) -> bool:
        """Whether `waits` holds for any of `everybody`. It must not hold for numbers that have left
        `everybody`."""
        known = self._known
        while known:
            if waits(known[-1]):
                return True
            known.pop()
        known.extend(number for number in everybody if waits(number))
        return bool(known)

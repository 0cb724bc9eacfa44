"""Does any of very many still have to do something? Asked after each that has.

A job has tens of thousands of ranks, and each says that it has stopped: were all looked at each
time, it would be looked at some 10^9 ranks. Those that were found waiting are remembered, one of
them is asked first, and all are looked at again only when none of these waits any more. The answer
is always that of looking at all: nothing has to be told here when something changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable


class PendingSet:
    def __init__(self) -> None:
        self._known: list[int] = []  # waited when all were last looked at

    def any(self, everybody: Iterable[int], waits: Callable[[int], bool]) -> bool:
        """Whether `waits` holds for any of `everybody`. What is known of numbers that have left
        `everybody` must not wait."""
        known = self._known
        while known:
            if waits(known[-1]):
                return True
            known.pop()
        known.extend(number for number in everybody if waits(number))
        return bool(known)

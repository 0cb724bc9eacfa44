"""When each rank was interrupted, ready, rebuilt, restored, and had committed, in one round.

A job may have 100,000 ranks: noting a time is one store into an array, and the journal gets one
line.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from math import nan
from typing import Any

INTERRUPTED, READY, REBUILT, RESTORED, COMMITTED = EVENTS = (
    "interrupted",
    "ready",
    "rebuilt",
    "restored",
    "committed",
)
MOST = 10_000  # ranks of a job whose moments are all kept; of a larger one, the last ones
LAST = 10
NEWEST = 8  # rounds


class RankTimes:
    """The moments of one round. `began`: when, on the clock of `note`."""

    def __init__(self, number: int, strategy: str, ranks: int, began: float) -> None:
        self.number, self.strategy, self.began = number, strategy, began
        self.ranks = ranks
        self._at: dict[str, array[float]] = {}

    def note(self, event: str, rank: int, at: float) -> None:
        """Note the first time that `event` happened to the rank in this round."""
        moments = self._at.get(event)
        if moments is None:
            moments = self._at[event] = array("d", (nan,)) * self.ranks
        if moments[rank] != moments[rank]:
            moments[rank] = max(at, self.began)

    def for_journal(self, since: float) -> dict[str, Any]:
        """Return the round for the journal; times in ms after `since`, None for ranks to which an
        event did not happen."""
        said: dict[str, Any] = {
            "round": self.number,
            "strategy": self.strategy,
            "began": _ms(self.began - since),
        }
        for event, moments in self._at.items():
            if self.ranks <= MOST:
                said[event] = [None if t != t else _ms(t - since) for t in moments]
                continue
            found = sorted(t for t in moments if t == t)
            said[event] = {
                "ranks": len(found),
                "first": _ms(found[0] - since),
                # of several at the same moment, one: that suffices to look for the cause
                "last": [[moments.index(t), _ms(t - since)] for t in found[: -LAST - 1 : -1]],
            }
        return said


def for_journal(rounds: Sequence[RankTimes], since: float) -> list[dict[str, Any]]:
    """Return the newest rounds for the journal; for a large job, only the last one."""
    few = 1 if rounds and rounds[-1].ranks > MOST else NEWEST
    return [round_.for_journal(since) for round_ in list(rounds)[-few:]]


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 1)

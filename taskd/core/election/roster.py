"""The roster of agents that may vote, and the one rule for a majority of them."""

from __future__ import annotations

from dataclasses import dataclass

Stamp = tuple[int, int]  # of a roster: the term in which it was made, a count
NONE: Stamp = (0, 0)


def is_majority(part: int, whole: int) -> bool:
    """Whether `part` of `whole` agents is a majority, which no disjoint part can contradict.
    Exactly half is not."""
    return 2 * part > whole


@dataclass(frozen=True)
class Roster:
    stamp: Stamp = NONE
    members: frozenset[str] = frozenset()

    def majority(self, agents: set[str] | frozenset[str]) -> bool:
        return is_majority(len(self.members & agents), len(self.members))

"""Who may vote, and the one rule by which agents of a job are a majority."""

from __future__ import annotations

from dataclasses import dataclass

Stamp = tuple[int, int]  # of a roster: the term in which it was made, a count
NONE: Stamp = (0, 0)


def is_majority(part: int, whole: int) -> bool:
    """Whether `part` of `whole` agents can decide what no other part of them decides otherwise.
    Exactly half cannot."""
    return 2 * part > whole


@dataclass(frozen=True)
class Roster:
    stamp: Stamp = NONE
    members: frozenset[str] = frozenset()

    def majority(self, agents: set[str] | frozenset[str]) -> bool:
        return is_majority(len(self.members & agents), len(self.members))

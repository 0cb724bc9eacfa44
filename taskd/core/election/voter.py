"""An agent's side of an election: which manager it obeys. The rule: see the package."""

from __future__ import annotations

from dataclasses import dataclass

from taskd.core.election.roster import Roster, Stamp


@dataclass
class Voter:
    term: int = 0
    manager: str = ""  # the process that this term was acknowledged to
    roster: Roster = Roster()  # of agents that cannot become managers the stamp only
    refused: int = 0  # orders of managers that are not obeyed

    def claim(self, term: int, manager: str, stamp: Stamp) -> bool:
        """A manager claims `term`, and knows the roster of `stamp`. Whether it is acknowledged."""
        if (term, manager) == (self.term, self.manager):
            return True
        if term <= self.term or stamp < self.roster.stamp:
            return False
        self.term, self.manager = term, manager
        return True

    def obeys(self, term: int, manager: str) -> bool:
        """Whether an order of `manager` in `term` is carried out; counted if not."""
        if (term, manager) == (self.term, self.manager):
            return True
        self.refused += 1
        return False

    def learn(self, roster: Roster) -> bool:
        """The manager in charge sends a roster. Whether it is (or was) taken."""
        if roster.stamp > self.roster.stamp:
            self.roster = roster
        return roster.stamp == self.roster.stamp

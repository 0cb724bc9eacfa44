"""An agent's side of an election: which manager it obeys. The package has the rule."""

from __future__ import annotations

from dataclasses import dataclass

from taskd.core.election.roster import Roster, Stamp


@dataclass
class Voter:
    term: int = 0
    manager: str = ""  # the process whose claim of this term was acknowledged
    roster: Roster = Roster()  # only the stamp on agents that cannot start a manager
    refused: int = 0  # orders of managers that this agent does not obey

    def claim(self, term: int, manager: str, stamp: Stamp) -> bool:
        """Whether to acknowledge a manager that claims `term` and knows the roster of `stamp`."""
        if (term, manager) == (self.term, self.manager):
            return True
        if term <= self.term or stamp < self.roster.stamp:
            return False
        self.term, self.manager = term, manager
        return True

    def obeys(self, term: int, manager: str) -> bool:
        """Whether to carry out an order of `manager` in `term`; refusals are counted."""
        if (term, manager) == (self.term, self.manager):
            return True
        self.refused += 1
        return False

    def learn(self, roster: Roster) -> bool:
        """Adopt the roster from the manager in charge; return whether it is the current one."""
        if roster.stamp > self.roster.stamp:
            self.roster = roster
        return roster.stamp == self.roster.stamp

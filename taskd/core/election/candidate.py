"""A manager's side of an election: whether it is in charge. The rule: see the package."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from taskd.core.election.roster import NONE, Roster, Stamp, is_majority


@dataclass
class Candidate:
    """`name` is the manager's process."""

    name: str
    term: int = 1
    successor: bool = False  # another one was in charge before, whoever has been heard so far
    roster: Roster = Roster()
    votes: set[str] = field(default_factory=set)  # agents that have acknowledged this term
    deposed: bool = False  # it was in charge, and another one is
    _known: Stamp = NONE  # of the newest roster that anybody has spoken of
    _voices: set[str] = field(default_factory=set)  # of the votes, those of the roster's members
    _kept: set[str] = field(default_factory=set)  # members that have the present roster
    # changes that wait: agent, whether it is added
    _wanted: deque[tuple[str, bool]] = field(default_factory=deque)
    _opened: bool = False  # the roster of the time before has been acknowledged unchanged

    @property
    def fresh(self) -> bool:
        """Nobody has ever been in charge of this job."""
        return self._known == NONE and not self.successor

    @property
    def in_charge(self) -> bool:
        return not self.deposed and (self.fresh or (self._current and self._acknowledged))

    @property
    def _current(self) -> bool:
        """Whether nobody that was heard knows of a newer roster than we."""
        return NONE < self._known <= self.roster.stamp

    def may_claim(self, reachable: set[str]) -> bool:
        """Whether claiming the term can lead to a majority. Without that no agent is asked: whoever
        acknowledges a manager that comes to nothing has left one that may be well."""
        if self.deposed or self.fresh:
            return self.fresh and not self.deposed
        # or it need not be looked at who they are
        enough = is_majority(len(reachable) + len(self.votes), len(self.roster.members))
        return self._current and (
            self._acknowledged or (enough and self.roster.majority(reachable | self.votes))
        )

    @property
    def _acknowledged(self) -> bool:
        """Whether a majority has acknowledged this term. Asked for each message, so it is counted
        as votes come in."""
        return is_majority(len(self._voices), len(self.roster.members))

    @property
    def settled(self) -> bool:
        """Whether a majority has the present roster, and nothing is to be changed."""
        return self._committed and not self._wanted

    @property
    def _committed(self) -> bool:
        return is_majority(len(self._kept), len(self.roster.members)) or self.roster.stamp == NONE

    def member(self, agent: str) -> bool:
        """Whether the agent is on a roster that a majority has."""
        return self._committed and agent in self.roster.members

    def hear(self, agent: str, term: int, manager: str, roster: Roster) -> bool:
        """An agent says where it stands. True when this manager has to claim a term from everybody
        anew."""
        self._known = max(self._known, roster.stamp)
        if roster.stamp > self.roster.stamp and roster.members:
            self._adopt(roster)
        if term < self.term or (term, manager) == (self.term, self.name):
            return False
        # in charge until now: whoever was acknowledged after us is
        if not self.fresh and self._opened:
            self.deposed = True
            return False
        self.term = term + 1
        self.votes.clear()
        self._voices.clear()
        return True

    def vote(self, agent: str, term: int, granted: bool) -> None:
        if term == self.term and granted:
            self.votes.add(agent)
            if agent in self.roster.members:
                self._voices.add(agent)

    def yield_to(self, term: int) -> None:
        """Another manager is in charge of `term`."""
        self.deposed = self.deposed or term > self.term

    # -- the roster --------------------------------------------------------------------------------

    def want(self, agent: str, present: bool) -> None:
        """The agent shall be on the roster, or not be any more."""
        self._wanted = deque((a, p) for a, p in self._wanted if a != agent)
        if (agent in self.roster.members) != present:
            self._wanted.append((agent, present))

    def form(self, agents: frozenset[str]) -> None:
        """The first roster, of a job that has just been formed."""
        self._adopt(Roster((self.term, 1), agents))
        self._opened, self._known = True, self.roster.stamp

    def advance(self) -> Roster | None:
        """The next roster, to be sent to everybody, if it is time for one."""
        if not self.in_charge or self.roster.stamp == NONE:
            return None
        if not self._opened:
            self._opened = True
            return self._next(self.roster.members)
        if not self._committed or not self._wanted:
            return None
        for agent, present in self._wanted:
            members = self.roster.members
            members = members | {agent} if present else members - {agent}
            # Else this manager were in charge no longer: the change waits for more votes.
            if is_majority(len(self.votes & members), len(members)):
                self._wanted.remove((agent, present))
                return self._next(members)
        return None

    def _next(self, members: frozenset[str]) -> Roster:
        self._adopt(Roster((self.term, self.roster.stamp[1] + 1), members))
        self._known = max(self._known, self.roster.stamp)
        return self.roster

    def kept(self, agent: str, stamp: Stamp) -> None:
        """The agent has the roster of `stamp`."""
        if stamp == self.roster.stamp and agent in self.roster.members:
            self._kept.add(agent)

    def _adopt(self, roster: Roster) -> None:
        self.roster, self._kept, self._voices = roster, set(), self.votes & roster.members

"""A manager's side of an election: whether it is in charge. The package has the rule."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

from taskd.core.election.roster import NONE, Roster, Stamp, is_majority


@dataclass
class Candidate:
    """The voting state of one manager; `name` is its process."""

    name: str
    term: int = 1
    successor: bool = False  # another manager was in charge before
    roster: Roster = Roster()
    votes: set[str] = field(default_factory=set)  # agents that have acknowledged this term
    deposed: bool = False  # it was in charge, and another manager is now
    _known: Stamp = NONE  # of the newest roster that any agent has reported
    _voices: set[str] = field(default_factory=set)  # the votes of the roster's members
    _kept: set[str] = field(default_factory=set)  # members that have the current roster
    # pending changes: agent, whether to add it
    _wanted: deque[tuple[str, bool]] = field(default_factory=deque)
    # the term, roster and departures with which a majority was last found reachable
    _reached: tuple[int, Stamp, int] = (0, NONE, -1)
    _opened: bool = False  # the inherited roster has been sent unchanged, under our term

    @property
    def fresh(self) -> bool:
        """Whether no manager has ever been in charge of this job."""
        return self._known == NONE and not self.successor

    @property
    def in_charge(self) -> bool:
        return not self.deposed and (self.fresh or (self._current and self._acknowledged))

    @property
    def _current(self) -> bool:
        """Whether no agent so far has reported a newer roster than ours."""
        return NONE < self._known <= self.roster.stamp

    def may_claim(self, reachable: set[str], left: int) -> bool:
        """Whether claiming the term can lead to a majority. If not, no agent is asked: it would
        leave a possibly healthy manager for one that cannot take charge. `left`: how often an agent
        has left `reachable`; until one does, a majority found there still holds."""
        if self.deposed or self.fresh:
            return self.fresh and not self.deposed
        # too few in number: no need to check who they are
        enough = is_majority(len(reachable) + len(self.votes), len(self.roster.members))
        here = (self.term, self.roster.stamp, left)
        if enough and here != self._reached and self.roster.majority(reachable | self.votes):
            self._reached = here
        return self._current and (self._acknowledged or here == self._reached)

    @property
    def _acknowledged(self) -> bool:
        """Whether a majority has acknowledged this term. Needed for each message, so votes are
        counted as they arrive."""
        return is_majority(len(self._voices), len(self.roster.members))

    @property
    def settled(self) -> bool:
        """Whether a majority has the current roster and no change is pending."""
        return self._committed and not self._wanted

    @property
    def _committed(self) -> bool:
        return is_majority(len(self._kept), len(self.roster.members)) or self.roster.stamp == NONE

    def member(self, agent: str) -> bool:
        """Whether the agent is on a roster that a majority has."""
        return self._committed and agent in self.roster.members

    def hear(self, agent: str, term: int, manager: str, roster: Roster) -> bool:
        """Record an agent's voting state. Returns True if this manager has to claim a new term from
        all agents."""
        self._known = max(self._known, roster.stamp)
        if roster.stamp > self.roster.stamp and roster.members:
            self._adopt(roster)
        if term < self.term or (term, manager) == (self.term, self.name):
            return False
        # we were in charge until now; the manager acknowledged after us is in charge now
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
        """Schedule adding the agent to the roster, or removing it."""
        self._wanted = deque((a, p) for a, p in self._wanted if a != agent)
        if (agent in self.roster.members) != present:
            self._wanted.append((agent, present))

    def may_form(self, agents: Collection[str]) -> bool:
        """Whether this manager stays in charge once these agents are its first roster."""
        return self.in_charge and is_majority(len(self.votes & set(agents)), len(agents))

    def form(self, agents: frozenset[str]) -> None:
        """Make the first roster, of a job that has just formed."""
        self._adopt(Roster((self.term, 1), agents))
        self._opened, self._known = True, self.roster.stamp

    def advance(self) -> Roster | None:
        """Return the next roster to send to all agents, if one is due."""
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
            # Otherwise this manager would lose its majority: the change waits for more votes.
            if is_majority(len(self.votes & members), len(members)):
                self._wanted.remove((agent, present))
                return self._next(members)
        return None

    def _next(self, members: frozenset[str]) -> Roster:
        self._adopt(Roster((self.term, self.roster.stamp[1] + 1), members))
        self._known = max(self._known, self.roster.stamp)
        return self.roster

    def kept(self, agent: str, stamp: Stamp) -> None:
        """Note that the agent has the roster of `stamp`."""
        if stamp == self.roster.stamp and agent in self.roster.members:
            self._kept.add(agent)

    def _adopt(self, roster: Roster) -> None:
        self.roster, self._kept, self._voices = roster, set(), self.votes & roster.members

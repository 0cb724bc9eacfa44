"""Which manager is in charge, and who may vote: so that two managers never both act.

Theory of operation. Every manager claims a *term*, a number above all that it has heard of. An
agent acknowledges a term once, to one manager, and from then on obeys that manager only; what
managers of lower terms order is refused and counted. A manager is in charge when a majority of the
agents of the job has acknowledged its term.

Who is an agent of the job stands in the *roster*, which changes when a standby comes and when a
lost node's agent is fenced. A roster is numbered by the term in which it was made and a count. It
changes by one agent at a time, and the next change waits until a majority of the roster has the
present one; an agent votes only for a manager that knows at least as new a roster. So any two
majorities, of the same or of two following rosters, have an agent in common, and two managers
cannot both find one. (The argument is that of Raft's single-server membership change, Ongaro 2014,
4.1; a new manager first has its roster acknowledged unchanged, which is the correction of 2015.)

A job that is just being formed has no roster: its first manager is in charge without a vote,
because nothing is protected yet that two managers could spoil. Exactly half of the agents is no
majority: where the other half is lost, or cut off, nobody takes charge, agents wait as long as they
wait for a manager, and the job ends.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

Stamp = tuple[int, int]  # of a roster: the term in which it was made, a count
NONE: Stamp = (0, 0)


@dataclass(frozen=True)
class Roster:
    stamp: Stamp = NONE
    members: frozenset[str] = frozenset()

    def majority(self, agents: set[str] | frozenset[str]) -> bool:
        return 2 * len(self.members & agents) > len(self.members)


@dataclass
class Voter:
    """An agent's side."""

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


@dataclass
class Chair:
    """A manager's side. `name` is its process."""

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

    def may_claim(self, heard: set[str]) -> bool:
        """Whether claiming the term can lead to a majority. Without that no agent is asked: whoever
        acknowledges a manager that comes to nothing has left one that may be well."""
        if self.deposed or self.fresh:
            return self.fresh and not self.deposed
        # or it need not be looked at who they are
        enough = 2 * (len(heard) + len(self.votes)) > len(self.roster.members)
        return self._current and (
            self._acknowledged or (enough and self.roster.majority(heard | self.votes))
        )

    @property
    def _acknowledged(self) -> bool:
        """Whether a majority has acknowledged this term. Asked for each message, so it is counted
        as votes come in."""
        return 2 * len(self._voices) > len(self.roster.members)

    @property
    def settled(self) -> bool:
        """Whether a majority has the present roster, and nothing is to be changed."""
        return self._committed and not self._wanted

    @property
    def _committed(self) -> bool:
        return 2 * len(self._kept) > len(self.roster.members) or self.roster.stamp == NONE

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
        agent, present = self._wanted.popleft()
        return self._next(
            self.roster.members | {agent} if present else self.roster.members - {agent}
        )

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

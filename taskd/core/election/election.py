"""Tracks agents for the manager's side of an election: which are asked to vote, and which are on
the roster. `candidate.py` has the rule.
"""

from __future__ import annotations

from collections.abc import Callable

from taskd.core import commands as c
from taskd.core import events as e
from taskd.core.election.candidate import Candidate
from taskd.core.election.roster import NONE, Roster
from taskd.messages.values import Address, Voting

STANDBY = -3  # in place of a node's number: the agent has none
# hosts whose agents may start the next manager, and so need the members of the roster
SUCCESSORS = 5
NOWHERE: Address = ("", 0)
FEW = 50  # most machines that are asked at once: a connection each, and with time for the answers


class Election:
    """The election as this manager sees it. `name`: of its process. `successor`: another manager
    was in charge of the job before. `host`: the machine that it runs on."""

    def __init__(self, name: str = "", successor: bool = False, host: str = "") -> None:
        self.candidate = Candidate(name, successor=successor)
        self._host = host
        self._connected: set[str] = set()  # agents that have reported their voting state
        self._looking: set[str] = set()  # of these, those without a manager or with this one
        self._left = 0  # how often one has left these
        # of these, those not asked for their vote since
        self._unasked: set[str] = set()
        self._here: dict[str, Voting] = {}  # agents that are part of the job
        self._members: dict[str, Voting] = {}  # agents of the roster
        # of an inherited roster: those that have neither registered nor ended; None: not inherited
        self._awaited: set[str] | None = None
        self._asked: set[str] = set()  # of these, those whose machines were asked
        self._was_in_charge = self.in_charge
        self._resigned = False

    @property
    def in_charge(self) -> bool:
        return self.candidate.in_charge

    @property
    def roster(self) -> Roster:
        return self.candidate.roster

    # -- agents vote -------------------------------------------------------------------------------

    def state(self, event: e.VoterStated) -> list[c.Command]:
        """An agent has reported its vote, its roster and whether it has a manager."""
        candidate, agent, out = self.candidate, event.agent, list[c.Command]()
        self._connected.add(agent)
        looked = agent in self._looking
        self._stop_looking(agent)
        if not event.content or event.manager in ("", candidate.name):
            self._looking.add(agent)
            self._unasked.add(agent)
        elif looked:
            self._left += 1
        stale = event.content and event.manager != candidate.name
        if stale and 0 < event.term < candidate.term and self.in_charge:
            # it obeys a manager that was cut off, and does not know our term yet
            out.append(c.AskToRegister((agent,)))
        roster = Roster(event.stamp, frozenset(event.members))
        anew = candidate.hear(agent, event.term, event.manager, roster)
        if candidate.roster == roster and event.members:
            before, self._members = self._members.keys(), dict(event.members)
            if self._awaited is not None:  # in charge, and another agent has a newer roster
                added = roster.members - before - self._here.keys()
                self._awaited = self._awaited & roster.members | added
        if anew:
            self._unasked = set(self._looking)  # the term is a new one
        if candidate.may_claim(self._looking, self._left):
            asked, self._unasked = self._unasked - candidate.votes, set()
            if asked:
                out.append(c.RequestVotes(tuple(sorted(asked)), candidate.roster.stamp))
        return out + self._began()

    def voted(self, event: e.AgentVoted) -> list[c.Command]:
        self.candidate.vote(event.agent, event.term, event.granted)
        if began := self._began():
            return began
        if self.in_charge and event.agent not in self._here:  # late
            return [c.AskToRegister((event.agent,))]
        return []

    def _began(self) -> list[c.Command]:
        """What follows once this manager is in charge. It briefly is not after an agent has
        reported a newer roster; messages that arrive meanwhile are lost, so the agents register
        again."""
        was, self._was_in_charge = self._was_in_charge, self.in_charge
        if was or not self.in_charge:
            return []
        candidate, members = self.candidate, self.candidate.roster.members
        self._awaited = set(members - self._here.keys())
        return [
            c.TakeCharge(candidate.term, len(candidate.votes & members), len(members)),
            c.AskToRegister(tuple(sorted(self._connected))),
        ]

    def disconnected(self, agent: str) -> None:
        self._connected.discard(agent)
        self._left += agent in self._looking
        self._stop_looking(agent)

    def _stop_looking(self, agent: str) -> None:
        self._looking.discard(agent)
        self._unasked.discard(agent)

    def stranger(self, agent: str) -> bool:
        """Whether the agent is not, or no longer, part of this job."""
        return bool(self.roster.members) and agent not in self.roster.members

    @property
    def doubtful(self) -> bool:
        """Whether too few agents of the roster are connected to rule out that another manager is in
        charge of the others."""
        members = self.roster.members
        return bool(members) and self.in_charge and not self.roster.majority(self._connected)

    # -- the roster --------------------------------------------------------------------------------

    def arrive(self, agent: str, node: int, records: Address) -> None:
        """Note that the agent is part of the job, on `node` or as STANDBY."""
        if agent:
            known = self._here.get(agent)
            at = records if records[0] or known is None else known.records
            self._here[agent] = Voting(node, at)
            self._await_no_longer(agent)

    def stand_down(self, agent: str) -> None:
        """Note that the agent has no node any more. If it is lost it is not back, and leaves the
        roster as a standby does."""
        if agent in self._here:
            self.arrive(agent, STANDBY, NOWHERE)
        elif (known := self._members.get(agent)) is not None:
            self._members = {**self._members, agent: Voting(STANDBY, known.records)}

    def votes_here(self, agent: str) -> bool:
        """Whether the agent is on the roster, and connected."""
        return agent in self.roster.members and agent in self._connected

    def depart(self, agent: str) -> None:
        self._here.pop(agent, None)
        self._await_no_longer(agent)

    def ended(self, agent: str) -> None:
        """Note that an agent has ended, according to its machine."""
        if agent not in self._connected:
            self._await_no_longer(agent)

    def _await_no_longer(self, agent: str) -> None:
        if self._awaited is not None:
            self._awaited.discard(agent)

    @property
    def all_accounted(self) -> bool:
        """Whether each agent of the roster that another manager has left has registered with this
        one, or has ended. One that takes over a node registers only after that."""
        return self._awaited is not None and not self._awaited

    def unasked(self) -> dict[str, Address]:
        """Return, once, the agents that may have ended, and where they listened: nearly all others
        have registered, and these are not even connected."""
        if self._awaited is None or len(self._awaited) > FEW:
            return {}
        silent = self._awaited - self._connected - self._asked
        self._asked |= silent
        return {agent: at for agent in sorted(silent) if (at := self._members[agent].records)[1]}

    def holder(self, node: int) -> str:
        """Return the agent of the roster that has `node`, "" if unknown."""
        here = self._here
        return next(
            (a for a, at in self._members.items() if node == at.node == here.get(a, at).node), ""
        )

    def tend(self, unaccounted: Callable[[], bool]) -> list[c.Command]:
        """Change the roster of a protected job if a change is due. `unaccounted`: whether the
        previous manager may have given a lost node to an unknown agent; called only for a change,
        since it scans all nodes."""
        candidate = self.candidate
        if candidate.deposed and not self._resigned:
            self._resigned = True
            term = candidate.term
            return [c.Resign(f"another manager is in charge; this one was in term {term}")]
        if candidate.fresh and candidate.may_form(self._here):
            candidate.form(frozenset(self._here))
            self._was_in_charge = True
            return [self._publish(candidate.roster)]
        if (roster := candidate.advance()) is None:
            return []
        stays = unaccounted()
        for agent, at in self._members.items():
            # Removing an absent standby loses nothing: it is added again when it returns. It must
            # stay while it may be taking over a node that the previous manager gave it.
            gone = agent not in self._here and agent not in self._connected
            if at.node == STANDBY and gone and not stays:
                candidate.want(agent, False)
        return [self._publish(roster)]

    def _publish(self, roster: Roster) -> c.SendRoster:
        def order(agent: str) -> tuple[bool, bool, int]:
            node, records = self._here[agent]
            return records[0] != self._host, node == STANDBY, node

        here = sorted(self._here, key=order)
        known = [self._here[agent].records[0] for agent in here]
        hosts = tuple(dict.fromkeys(host for host in known if host))[: SUCCESSORS + 1]
        found = self._members | self._here
        self._members = {a: found.get(a, Voting(STANDBY)) for a in sorted(roster.members)}
        # those of 10,000 agents are 600 kB: only agents that may start a manager need them
        whole = {a for a in roster.members & set(here) if self._here[a].records[0] in hosts}
        return c.SendRoster(
            roster.stamp,
            self._members,
            hosts,
            tuple(sorted(whole)),
            tuple(sorted(roster.members - whole)),
        )

    # -- counting ----------------------------------------------------------------------------------

    def count(self, reachable: set[str]) -> tuple[int, int] | None:
        """Return how many agents of the roster are reachable, and its size; None before there is a
        roster."""
        if self.roster.stamp == NONE:
            return None
        return len(self.roster.members & reachable), len(self.roster.members)

    def standbys(self) -> list[str]:
        """The standbys that have registered, also those that are not on the roster yet."""
        return [agent for agent, voting in self._here.items() if voting.node == STANDBY]

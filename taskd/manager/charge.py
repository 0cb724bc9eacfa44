"""The manager's dealings with agents about who is in charge: what `core.terms` decides, as
messages."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from typing import Any

from taskd.core.terms import Chair, Roster
from taskd.manager.outgoing import Outgoing
from taskd.messages import from_agent, to_agent
from taskd.messages.envelope import STANDBY
from taskd.protocol.link import Link

PLACES = 16  # where another manager is looked for
# agents that may start a manager when this one is gone, and know for that who may vote
SUCCESSORS = 5

log = logging.getLogger("taskd.manager")


class Charge:
    def __init__(
        self, name: str, successor: bool, shape: tuple[int, int], place: tuple[str, int]
    ) -> None:
        """`shape`: nodes of the job, ranks on each. `place`: where this manager listens."""
        self.chair = Chair(name, successor=successor)
        self._shape, self._place = shape, place
        # agent -> its route, and the descriptor of its connection
        self.ways: dict[str, tuple[bytes, int]] = {}
        self._others: dict[tuple[str, int], Link] = {}  # to places where another manager may be
        self._looking: set[str] = set()  # connected agents that have no manager, or us
        # of these, those that have not been asked for their vote since they said where they stand
        self._unasked: set[str] = set()
        self._nodes: dict[str, int] = {}  # agents of the roster, and their nodes; STANDBY for none
        self.places: list[tuple[str, int]] = []  # where other managers may be
        self._was = self.chair.in_charge

    def open(self, out: Outgoing, link: Callable[[tuple[str, int]], Link]) -> None:
        """`link` connects to where another manager may be."""
        self._out, self._link = out, link

    def close(self) -> None:
        for link in self._others.values():
            link.close()
        self._others.clear()

    @property
    def in_charge(self) -> bool:
        return self.chair.in_charge

    def send(self, agents: Iterable[str], message: Any) -> None:
        """To agents that have said where they stand."""
        data = self._out.seal(message)
        for agent in agents:
            if (way := self.ways.get(agent)) is not None:
                # when it is gone, it will say where it stands when it is back
                self._out.put(way[0], data)

    def ended(self, lines: set[int]) -> None:
        """Connections of these descriptors have."""
        for agent in [a for a, (_, way) in self.ways.items() if way in lines]:
            del self.ways[agent]
            self.left(agent)

    def stands(self, agent: str, standing: from_agent.Standing) -> None:
        """An agent says where it stands."""
        chair = self.chair
        self.left(agent)
        if not standing.content or standing.manager in ("", chair.name):
            self._looking.add(agent)
            self._unasked.add(agent)
        roster = Roster(standing.stamp, frozenset(standing.members))
        if (
            standing.content
            and standing.manager != chair.name
            and 0 < standing.term < chair.term
            and self.in_charge
        ):
            # from one that still obeys, or is, a manager that was cut off: our term is news to it
            self.send([agent], to_agent.Who())
        anew = chair.hear(agent, standing.term, standing.manager, roster)
        if chair.roster == roster and standing.members:
            self._nodes = dict(standing.members)
        if anew:
            self._unasked = set(self._looking)  # for another term
        if chair.may_claim(self._looking):
            asked, self._unasked = self._unasked - chair.votes, set()
            self.send(asked, to_agent.Claim(chair.roster.stamp))

    def voted(self, agent: str, vote: from_agent.Vote) -> bool:
        """True when this makes us the manager in charge, of a job that had one before."""
        self.chair.vote(agent, vote.term, vote.granted)
        became = self.in_charge and not self._was
        if became:
            self._was = True
            log.warning(
                "in charge in term %d, acknowledged by %d of %d agents",
                self.chair.term,
                *self._count(),
            )
        return became

    def _count(self) -> tuple[int, int]:
        return len(self.chair.votes & self.chair.roster.members), len(self.chair.roster.members)

    def kept(self, agent: str, kept: from_agent.RosterKept) -> None:
        self.chair.kept(agent, kept.stamp)

    def left(self, agent: str) -> None:
        """Its connection has ended."""
        self._looking.discard(agent)
        self._unasked.discard(agent)

    def stranger(self, agent: str) -> bool:
        """Whether the agent is none of this job's any more."""
        members = self.chair.roster.members
        return bool(members) and agent not in members

    def _doubts(self) -> bool:
        """Whether so few agents of the roster are connected that another manager may be in charge
        of the others."""
        members = self.chair.roster.members
        return bool(members) and self.in_charge and not self.chair.roster.majority(set(self.ways))

    def doubt(self) -> None:
        """While few agents are connected: ask in all places where another manager may be whether
        one is in charge of the others. Who was stopped, or cut off with its own agent, hears of it
        in no other way."""
        if not self._doubts():
            self.close()
            return
        for place in self.places:
            if place not in self._others and place[0] != self._place[0]:
                self._others[place] = self._link(place)
        for link in self._others.values():
            while link.receive() is not None:
                self.told(link.term)
            link.read_monitor()
            if link.connected:
                link.send(self.standing())

    def standing(self) -> from_agent.Standing:
        """Where this manager stands, to another one."""
        return from_agent.Standing(
            self.chair.term, self.chair.name, self.chair.roster.stamp, {}, True
        )

    def told(self, term: int) -> None:
        """Another manager is in charge of `term`."""
        self.chair.deposed = self.chair.deposed or term > self.chair.term

    def holder(self, node: int) -> str:
        """The agent of the roster that has `node`, as far as is known; ""."""
        return next((agent for agent, at in self._nodes.items() if at == node), "")

    def tend(self, agents: Callable[[], list[tuple[str, str, int]]], waiting: bool) -> None:
        """Of a job that is protected: change the roster where that is due, and tell. `agents`:
        names, machines and nodes, in the order in which a manager may be started there. `waiting`:
        some node may have been given away by the manager before us."""
        chair = self.chair
        if chair.fresh and chair.in_charge:
            known = agents()
            chair.form(frozenset(agent for agent, _, _ in known))
            self._was = True
            self._publish(chair.roster, known)
        elif (roster := chair.advance()) is not None:
            known = agents()
            here = {agent for agent, _, _ in known}
            for agent, node in self._nodes.items():
                # it has nothing that anybody could lose; when it comes back it is added again. Not
                # while it may be on its way to a node that the manager before us has given it
                if node == STANDBY and agent not in here and not waiting:
                    chair.want(agent, False)
            self._publish(roster, known)

    def _publish(self, roster: Roster, agents: list[tuple[str, str, int]]) -> None:
        hosts = list(dict.fromkeys(host for _, host, _ in agents if host))[: SUCCESSORS + 1]
        places = tuple((host, self._place[1]) for host in hosts)
        self.places = list(dict.fromkeys((*places, *self.places)))[:PLACES]
        nodes = self._nodes | {agent: node for agent, _, node in agents}
        self._nodes = {agent: nodes.get(agent, STANDBY) for agent in roster.members}
        whole = to_agent.RosterIs(roster.stamp, self._nodes, places, *self._shape, os.getpid())
        # of 10,000 agents the names are 400 kB
        stamp = to_agent.RosterIs(roster.stamp, {}, places, *self._shape, os.getpid())
        likely = roster.members & {agent for agent, host, _ in agents if host in hosts}
        self.send(likely, whole)
        self.send(roster.members - likely, stamp)

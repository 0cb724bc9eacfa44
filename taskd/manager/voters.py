"""The agents as voters: their routes, the messages of `core.election` to them, and the other
managers that may be in charge of those that are not connected."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from typing import Any

from taskd.core import commands as c
from taskd.core import events as e
from taskd.core.election.election import Election
from taskd.manager.outgoing import Outgoing
from taskd.manager.peers import Origin
from taskd.messages import from_agent, to_agent
from taskd.protocol.link import Link

PLACES = 16  # most addresses at which another manager is looked for

log = logging.getLogger("taskd.manager")


class Voters:
    def __init__(
        self,
        election: Election,
        shape: tuple[int, int],
        place: tuple[str, int],
        out: Outgoing,
        rivals: Iterable[tuple[str, int]] = (),
    ) -> None:
        """`shape`: nodes of the job, ranks on each. `place`: where this manager listens. `rivals`:
        where another one may be in charge, before this one knows where its agents are."""
        self._election, self._shape, self.place, self._out = election, shape, place, out
        # agent -> its route, and the descriptor of its connection
        self.routes: dict[str, tuple[bytes, int]] = {}
        self._others: dict[tuple[str, int], Link] = {}  # to places where another manager may be
        self._places = list(rivals)
        self._carry_out: dict[type, Callable[[Any], None]] = {
            c.AskToRegister: lambda command: self._send(command.agents, to_agent.RegisterAgain()),
            c.RequestVotes: lambda command: self._send(
                command.agents, to_agent.Claim(command.stamp)
            ),
            c.SendRoster: self._send_roster,
            c.TakeCharge: self._take_charge,
        }

    @property
    def commands(self) -> tuple[type, ...]:
        """The commands that `carry_out` takes."""
        return tuple(self._carry_out)

    def carry_out(self, command: c.Command) -> None:
        self._carry_out[type(command)](command)

    def close(self) -> None:
        for link in self._others.values():
            link.close()
        self._others.clear()

    def event(
        self,
        message: from_agent.VoterState | from_agent.Vote | from_agent.RosterKept,
        origin: Origin,
    ) -> e.Event:
        """Turn a voter's message into an event for `core`."""
        agent = origin.envelope.process
        self.routes[agent] = origin.route, origin.descriptor
        if isinstance(message, from_agent.Vote):
            return e.AgentVoted(agent, message.term, message.granted)
        if isinstance(message, from_agent.RosterKept):
            return e.RosterKept(agent, message.stamp)
        return e.VoterStated(
            agent, message.term, message.manager, message.stamp, message.members, message.content
        )

    def ended(self, descriptors: set[int]) -> list[str]:
        """Forget the agents whose connections have ended; returns them."""
        gone = [
            agent for agent, (_, connection) in self.routes.items() if connection in descriptors
        ]
        for agent in gone:
            del self.routes[agent]
        return gone

    def _send(self, agents: Iterable[str], message: Any) -> None:
        data = self._out.seal(message)
        for agent in agents:
            if (route := self.routes.get(agent)) is not None:
                # if it is gone, it reports its state when it reconnects
                self._out.put(route[0], data)

    def _take_charge(self, command: c.TakeCharge) -> None:
        log.warning(
            "in charge in term %d, acknowledged by %d of %d agents",
            command.term,
            command.votes,
            command.voters,
        )

    def _send_roster(self, command: c.SendRoster) -> None:
        places = tuple((host, self.place[1]) for host in command.hosts)
        self._places = list(dict.fromkeys((*places, *self._places)))[:PLACES]
        for agents, members in ((command.whole, command.members), (command.others, {})):
            roster = to_agent.RosterIs(command.stamp, members, places, *self._shape, os.getpid())
            self._send(agents, roster)

    # -- other managers ----------------------------------------------------------------------------

    def look_for_others(self, connect: Callable[[tuple[str, int]], Link]) -> list[e.OtherManager]:
        """While too few agents are connected, ask wherever another manager may be whether one is in
        charge of the others. A manager that was stopped, or cut off with its own agent, has no
        other way to learn about it."""
        if not self._election.doubtful:
            self.close()
            return []
        for place in self._places:
            if place not in self._others and place[0] != self.place[0]:
                self._others[place] = connect(place)
        found = []
        for link in self._others.values():
            while link.receive() is not None:
                found.append(e.OtherManager(link.term))
            link.read_monitor()
            if link.connected:
                link.send(self._voter_state())
        return found

    def _voter_state(self) -> from_agent.VoterState:
        """This manager's state, for another one."""
        candidate = self._election.candidate
        return from_agent.VoterState(
            candidate.term, candidate.name, candidate.roster.stamp, {}, True
        )

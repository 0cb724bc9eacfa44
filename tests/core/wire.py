"""The connection between an agent and the manager in a `World`, with protocol.delivery.

It breaks at any message, in either direction, before or after the message has arrived; and the
manager's process may be stopped for a while."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taskd.core import events as e
from taskd.messages import from_agent
from taskd.protocol.delivery import Inbox, Outbox

if TYPE_CHECKING:
    from tests.core.world import Node, World

PASSING = from_agent.RankStalled | from_agent.ProgressReport
REGISTRATION = from_agent.AgentJoined | from_agent.NodeTaken
SOON = 1.0  # seconds in which all messages over an intact connection have arrived


class Wire:
    """The connection of one node. `up`: it is established; `since`: when it was, or when either end
    was replaced."""

    def __init__(self, world: World, node: Node) -> None:
        self.world, self.node, self.chance = world, node, world.chance
        self.connection = 0
        self.up = True
        self.begin()

    def begin(self) -> None:
        """Reset both ends, for another manager or another agent."""
        self.said: Outbox[e.Event] = Outbox()  # by the agent
        self.ordered: Outbox[Any] = Outbox()
        self.inbox, self.taken = Inbox(), Inbox(gaps=True)
        # messages that wait for a connection
        self.waits: list[tuple[int, Any]] = []
        self.opening = True
        self.connection += 1
        self.first = self.connection  # what came over an earlier one was for other ends
        self.route = self.connection  # the one that the manager knows
        # the manager hears nothing but registrations before it has admitted the agent; then the
        # agent sends again what it said meanwhile
        self.admitted = False
        self.early: list[e.Event] = []
        self.since, self.up = self.world.now, True
        # of each message: when it was sent, whether by the agent, its number
        self.times: list[tuple[float, bool, int]] = []

    # -- messages

    def say(self, event: e.Event) -> None:
        if isinstance(event, PASSING):
            if self.said.in_step:
                self._send(True, 0, event)
            return
        number = self.said.number + 1
        self.times.append((self.world.now, True, number))
        number, self.opening = -number if self.opening else number, False
        if self.said.add(event, number):
            self._send(True, number, event)

    def order(self, command: Any) -> None:
        self.world.orders += self.chance.choice([1, 1, 7])  # other agents' orders come between
        self.times.append((self.world.now, False, self.world.orders))
        if self.ordered.add(command, self.world.orders):
            self._send(False, self.world.orders, command)

    # -- the connection

    def _send(self, up: bool, number: int, what: Any) -> None:
        """Send a message; `up`: from the agent to the manager."""
        world, node = self.world, self.node
        if not self.up:
            if up:
                self.waits.append((number, what))
            return
        if not up and self.route != self.connection:
            return  # the manager has heard nothing over the new one
        breaks = self.world.breaks > 0 and self.chance.random() < 0.02
        if breaks:
            self.world.breaks -= 1
            world.counts["connection lost"] += 1
            if self.chance.random() < 0.5:  # before it has arrived
                self._break()
                return
        last = node.sent if up else node.received
        arrival = max(last, world.now + self.chance.choice([0.0001, 0.001, 0.001, 0.02])) + 1e-6
        if up:
            node.sent = arrival
        else:
            node.received = arrival
        key = (self.connection, world.manager, node.agent)

        def arrive(read: bool = False) -> None:
            """Deliver; `read`: the manager's machine received it before the connection ended."""
            if key[1:] != (world.manager, node.agent) or key[0] < self.first:
                return
            if key[0] != self.connection and not read:
                return
            if up and world.asleep is not None:
                there = self.chance.random() < 0.5
                world.asleep.append(lambda: arrive(there))
                return
            if up:
                if self.route != key[0]:
                    self.route, self.ordered.in_step = key[0], False
                self._at_the_manager(number, what)
            elif not (node.gone or node.cut):
                self._at_the_agent(number, what)
            if breaks and key == (self.connection, world.manager, node.agent):
                self._break()

        world.after(arrival - world.now, arrive)

    def _break(self) -> None:
        """Break the connection, which neither end notices at once: messages sent meanwhile are
        lost, or wait at the agent for the next connection."""
        self.connection += 1
        self.up = False
        for rank in self.node.ranks:
            rank.deaf = True
        self.world.after(self.chance.choice([0.06, 0.06, 0.3]), self._connect)

    def lose(self) -> None:
        if self.up:
            self._break()

    def _connect(self) -> None:
        world = self.world
        if self.up or self.node.gone:
            return
        if world.asleep is not None or self.node.cut:
            world.after(0.2, self._connect)
            return
        waits, self.waits = self.waits, []
        self.connection += 1
        self.up, self.since = True, world.now
        self.node.sent = self.node.received = world.now
        for number, what in waits if self.chance.random() < 0.5 else ():
            self._send(True, number, what)
        self.said.in_step = False
        self._send(True, 0, "standing")

    def _at_the_manager(self, number: int, what: Any) -> None:
        if what == "standing":
            self.ordered.in_step = False
            self._send(False, 0, ("ack", self.inbox.number))
        elif isinstance(what, tuple):
            for known, command in self.ordered.acknowledge(what[1]):
                self._send(False, known, command)
        elif number == 0 or self.inbox.take(number):
            self.hear(what, passing=number == 0)

    def hear(self, event: e.Event, passing: bool = False) -> None:
        """Have the manager hear the event once it has admitted the agent. `passing`: or never."""
        if self.admitted or isinstance(event, REGISTRATION):
            self.world.hear(event, self.node.agent)
        elif not passing:
            self.early.append(event)

    def admit(self) -> None:
        early, self.early, self.admitted = self.early, [], True
        first = self.first

        def again(event: e.Event) -> None:
            if first == self.first:
                self.world.hear(event, self.node.agent)

        for event in early:
            self.world.after(0.0, lambda event=event: again(event))

    def _at_the_agent(self, number: int, what: Any) -> None:
        if isinstance(what, tuple):
            self._send(True, 0, ("ack", self.taken.number))
            for known, event in self.said.acknowledge(what[1]):
                self._send(True, known, event)
        elif self.taken.take(number):
            self.world.agents.obey(self.node, what)

    # -- what must hold

    @property
    def settled(self) -> bool:
        """Whether the connection has been up for a while and both ends run."""
        world, node = self.world, self.node
        there = (
            self.up and not node.gone and not node.cut and world.asleep is None and not world.over
        )
        return (
            there
            and node.joined == world.manager
            and world.now - max(self.since, world.woke) > SOON
        )

    def check(self) -> None:
        """Every message has arrived once the connection has been up for a while."""
        world, node = self.world, self.node
        if not self.settled:
            return
        while self.times and world.now - self.times[0][0] > SOON:
            when, up, number = self.times.pop(0)
            known = self.inbox.number if up else self.taken.number
            world.counts["arrived in time"] += 1
            assert number <= known, (
                f"{'event' if up else 'order'} {number} of node {node.number} at {when:.3f} is"
                f" lost: {known} is known"
            )

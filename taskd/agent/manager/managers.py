"""Finds the manager in charge, and talks to it.

An agent has one connection, to the manager whose term it acknowledged last. When that ends, it
looks for a manager wherever one may be: at the last one's address, and at the agents that the last
one named as its successors. Managers claim their terms over these connections (core.election has
the rule). If there is no manager, the agent may start one (successor.py).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

from taskd.agent.manager.successor import Successor
from taskd.core.election.roster import Roster
from taskd.core.election.voter import Voter
from taskd.messages import codec, from_agent, to_agent
from taskd.messages.values import Voting
from taskd.protocol.delivery import Outbox
from taskd.protocol.keys import Identity, Keys
from taskd.protocol.link import Link

log = logging.getLogger("taskd.agent")

LOOK = 0.05  # seconds between two looks while there is no manager
SOON = 0.005  # the same, while other machines are asked, for a few round trips
PROVE = 2.0  # seconds that an acknowledged manager has to take charge
AGAIN = 0.25  # seconds between two reports of our voter state, while we look
PLACES = 16  # most addresses at which a manager is looked for
# seconds without a connection after which a manager stopped by a signal is killed; it waits as long
# for agents
STOPPED = 10.0
# messages that are outdated if sent later
PASSING = (from_agent.RankStalled, from_agent.ProgressReport)


class Managers:
    """Used by one thread. `announce` is called when a manager asks this agent to register."""

    def __init__(
        self,
        address: tuple[str, int],
        keys: Keys,
        identity: Identity,
        job: str,
        node: int,
        nodes: int,
        here: str,
        announce: Callable[[], None],
    ) -> None:
        """`nodes` of the job; `here`: this machine's address for other nodes, "" where there are
        none."""
        self._keys, self._identity, self._job, self._nodes = keys, identity, job, nodes
        self.here, self._announce = here, announce
        self._successor = Successor(keys, here)
        # all places where one may be: a manager that was cut off named only the agents that it
        # still reached, and the one in charge may be elsewhere
        self._places: list[tuple[str, int]] = [address]
        self.voter = Voter()
        # to the manager in use
        self.link = self._link(address, node)
        self._others: list[Link] = []  # while we look
        self._members: dict[str, Voting] = {}  # of the newest roster
        self._said = 0.0
        self._since: float | None = None  # when the connection was found ended
        # the manager that we obey has sent something over the present connection
        self._confirmed = False
        # link -> the number of its connection that last carried our voter state
        self._met: dict[Link, int] = {}
        # the sending node, the message, and when it was first sent
        self._outbox: Outbox[tuple[int, bytes, float]] = Outbox()
        self._informed = ""  # the manager that its messages are for
        # when a manager was acknowledged that has not taken charge yet
        self._acknowledged: float | None = None
        self.over = False  # the job is over: look for no manager
        self._between_us: dict[type, Callable[[Link, Any], None]] = {
            to_agent.RegisterAgain: self._register_again,
            to_agent.Ack: self._delivered,
            to_agent.Claim: self._claimed,
            to_agent.RosterIs: self._learn,
        }

    @property
    def name(self) -> str:
        """This process's name to managers."""
        return self._identity.name

    @property
    def obeyed(self) -> tuple[int, str]:
        """Term and name of the manager acknowledged last."""
        return self.voter.term, self.voter.manager

    @property
    def addressee(self) -> tuple[int, str]:
        """Term and name of the manager that receives our messages, acknowledged or not."""
        return self.link.term, self.link.manager

    def meet_at(self, address: tuple[str, int]) -> None:
        """Talk to the manager there, unless one has answered meanwhile."""
        if self.met or self.over:
            return
        log.warning("the manager is at %s:%d by now: this agent goes there", *address)
        self.link.close()
        self._places = list(dict.fromkeys((address, *self._places)))
        self.link = self._link(address, self.link.node)
        self._outbox.clear()
        self._announce()

    def be_node(self, node: int) -> None:
        """Send as `node` from now on; STANDBY for a standby."""
        for link in self.links:
            link.node = node

    def _link(self, address: tuple[str, int], node: int, refusal: bool = True) -> Link:
        keys, identity = self._keys, self._identity
        return Link(address, keys, self._job, node, identity, refusal=refusal, nodes=self._nodes)

    # -- sending and receiving ---------------------------------------------------------------------

    @property
    def links(self) -> list[Link]:
        return [self.link, *self._others]

    @property
    def content(self) -> bool:
        return self.link.connected and self._confirmed

    @property
    def met(self) -> bool:
        """Whether any manager has ever answered."""
        return self.link.answered or self.voter.term > 0

    @property
    def in_step(self) -> bool:
        """Whether every message has been handed to the connection."""
        return self._outbox.in_step

    @property
    def unheard(self) -> int:
        """The number of messages that the manager has not acknowledged."""
        return len(self._outbox.kept)

    def send(self, message: Any) -> None:
        """Send to the manager, at once or as soon as one can take it."""
        if isinstance(message, PASSING):
            if self._outbox.in_step:
                self.link.send(message)
        elif isinstance(message, from_agent.Heartbeat):
            self.link.send(message)
        else:
            self._say(message, self._outbox.number + 1)

    def _say(self, message: Any, number: int) -> None:
        said = self.link.node, codec.encode(message), time.monotonic()
        if self._outbox.add(said, number) and not self.link.say(said[1], number, at=said[2]):
            self._outbox.in_step = False  # its queue is full

    def begin(self, message: Any) -> None:
        """Send a message that reports everything and makes all earlier ones obsolete."""
        anew = self._informed != self.link.manager
        self._informed = self.link.manager
        if anew:
            self._outbox.clear()
        number = self._outbox.number + 1
        self._say(message, -number if anew else number)

    def send_voter_state(self, link: Link | None = None) -> None:
        """Report what this agent has acknowledged, and the roster that it has."""
        voter = self.voter
        state = from_agent.VoterState(
            voter.term, voter.manager, voter.roster.stamp, self._members, self.content
        )
        (link or self.link).send(state)

    def orders(self) -> Iterator[Any]:
        """Yield the orders of the manager that is obeyed. Messages of election and delivery are
        handled here."""
        for link in self.links:
            while (message := link.receive()) is not None:
                between_us = self._between_us.get(type(message))
                if between_us is not None:
                    between_us(link, message)
                    continue
                # a manager of a later term does not ask a fenced agent for its vote, and its fence
                # is final
                fenced = isinstance(message, to_agent.Fence) and link.term > self.voter.term
                if link.term == 0 or fenced or self.voter.obeys(link.term, link.manager):
                    self._confirm(link)
                    yield message
                else:
                    log.warning(
                        "%s of term %d is refused: term %d was acknowledged (%d refused so far)",
                        type(message).__name__,
                        link.term,
                        self.voter.term,
                        self.voter.refused,
                    )

    def _register_again(self, link: Link, message: to_agent.RegisterAgain) -> None:
        if (link.term, link.manager) == self.obeyed:
            self._confirm(link)
        if link is self.link:
            self._announce()
        else:
            self.send_voter_state(link)

    def _delivered(self, link: Link, message: to_agent.Ack) -> None:
        if self.voter.obeys(link.term, link.manager):
            self._confirm(link)
        link.send(to_agent.Ack(link.taken))
        if link is self.link and self._informed in ("", link.manager):
            self._informed = link.manager
            for known, (node, body, at) in self._outbox.acknowledge(message.number):
                if not link.say(body, known, node, at):
                    self._outbox.in_step = False
                    break

    def _claimed(self, link: Link, message: to_agent.Claim) -> None:
        known = self.obeyed
        granted = self.voter.claim(link.term, link.manager, message.stamp)
        link.send(from_agent.Vote(link.term, granted))
        if known != self.obeyed or not granted:
            log.info(
                "term %d of the manager at %s:%d is %s",
                link.term,
                *link.address,
                "acknowledged" if granted else "refused",
            )
        if not granted:
            self.send_voter_state(link)
        elif known != self.obeyed:
            self._change_to(link)

    def _learn(self, link: Link, message: to_agent.RosterIs) -> None:
        if not self.voter.obeys(link.term, link.manager):
            return
        self._confirm(link)
        self._successor.learn(message, link.place, time.monotonic())
        self._places = list(dict.fromkeys((*message.successors, *self._places)))[:PLACES]
        if message.stamp > self.voter.roster.stamp:
            self._members = message.members
        if self.voter.learn(Roster(message.stamp, frozenset(message.members))):
            link.send(from_agent.RosterKept(message.stamp))

    def _confirm(self, link: Link) -> None:
        """Note that the manager we obey has acted as the one in charge."""
        if link is self.link:
            self._confirmed, self._acknowledged = True, None

    def _change_to(self, link: Link) -> None:
        """Use `link` from now on: its manager was acknowledged."""
        if link is not self.link:
            self._outbox.in_step = False  # it asks us to register once it is in charge
        self._others = [other for other in self.links if other is not link]
        self.link, self._confirmed, self._acknowledged = link, False, time.monotonic()

    # -- searching ---------------------------------------------------------------------------------

    def read_monitors(self) -> None:
        for link in self.links:
            link.read_monitor()
            if link is self.link and (
                not link.connected or self._met.get(link) != link.connections
            ):
                self._confirmed = False
                # messages in flight on the previous connection may be lost
                if link.connections > link.connected:
                    self._outbox.in_step = False
            if link.connected and self._met.get(link) != link.connections:
                # another manager than before may listen there now
                self._met[link] = link.connections
                self.send_voter_state(link)

    def tend(self, now: float) -> float | None:
        """Look for a manager if there is none; returns when to look again."""
        # the first manager is awaited at the configured address
        if self.over or not self._successor.places:
            return None
        if self.content:
            if self._since is not None:
                self._be_content()
            return self._successor.prepare(now)
        if self._acknowledged is not None and self.link.connected:
            if now - self._acknowledged < PROVE:
                return self._acknowledged + PROVE
            log.warning(
                "the manager at %s:%d was acknowledged but has not taken charge", *self.link.address
            )
            self._acknowledged = None
        if self._since is None:
            self._since = self._said = now
            log.warning("the connection to the manager at %s:%d has ended", *self.link.address)
            self._search()
            self._successor.lost(self.link.place, now)
        if now - self._said > AGAIN:  # a manager started meanwhile does not know us
            self._said = now
            for link in self.links:
                if link.connected:
                    self.send_voter_state(link)
        if now - self._since >= STOPPED:
            self._successor.end_stopped(self.link.place, STOPPED)
        if now - self._since >= self._successor.patience(self.link.place, now):
            self._successor.start()
        return now + (SOON if self._successor.asking else LOOK)

    def _search(self) -> None:
        known = {link.address for link in self.links}
        log.info(
            "looking for a manager at %s",
            ", ".join(f"{host}:{port}" for host, port in self._places),
        )
        for address in self._places:
            if address not in known:
                other = self._link(address, self.link.node, refusal=False)
                self._others.append(other)
                self.send_voter_state(other)  # stays queued until a manager is there

    def _be_content(self) -> None:
        self._since = None
        for other in self._others:
            self._met.pop(other, None)
            other.close()
        self._others = []
        self._successor.found(self.link.place)

    def close(self) -> None:
        for link in self.links:
            link.close()
        self._successor.close()

"""Finding the manager that is in charge, and speaking to it.

An agent has one connection, to the manager whose term it has acknowledged last. When that ends it
looks for another one in all places where one may be: where the last one was, and at the agents that
the last one has named as its successors. Managers claim their terms there (core.election has the
rule). Where there is none, the agent may start one (successor.py).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

from taskd.agent.successor import Successor
from taskd.core.delivery import Outbox
from taskd.core.election.roster import Roster
from taskd.core.election.voter import Voter
from taskd.messages import codec, from_agent, to_agent
from taskd.protocol.keys import Identity, Keys
from taskd.protocol.link import Link

log = logging.getLogger("taskd.agent")

LOOK = 0.05  # seconds between two looks while there is no manager
PROVE = 2.0  # seconds that a manager that was acknowledged has to be in charge
AGAIN = 0.25  # seconds between two times that we say where we stand, while we look
PLACES = 16  # where a manager is looked for
# seconds without a connection that a manager may be stopped by a signal; it has as much patience
# with agents
STOPPED = 10.0
# true at the moment only: nobody wants to hear it later
PASSING = (from_agent.RankStalled, from_agent.ProgressReport)


class Managers:
    """Used by one thread. `announce` is called when a manager wants to know who we are."""

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
        self._successor = Successor(keys, job, here)
        # wherever one may be; a manager that was cut off has named those that it still heard, and
        # the one in charge is elsewhere
        self._places: list[tuple[str, int]] = [address]
        self.voter = Voter()
        # the one that is spoken to
        self.link = Link(address, keys, job, node, identity, nodes=nodes)
        self._others: list[Link] = []  # while we look
        self._members: dict[str, int] = {}  # of the newest roster, and their nodes
        self._said = 0.0
        self._since: float | None = None  # when the connection was found to have ended
        # over the present connection we have heard the manager that we obey
        self._confirmed = False
        self._met: dict[Link, int] = {}  # connections of each link that we have said something over
        self._outbox: Outbox[tuple[int, bytes]] = Outbox()  # as which node it was said, and what
        self._informed = ""  # the manager that what is in it was said to
        # when a manager was, that has not said anything as one in charge
        self._acknowledged: float | None = None
        self.over = False  # the job is: nobody is looked for
        self._between_us: dict[type, Callable[[Link, Any], None]] = {
            to_agent.RegisterAgain: self._register_again,
            to_agent.Ack: self._delivered,
            to_agent.Claim: self._claimed,
            to_agent.RosterIs: self._learn,
        }

    @property
    def name(self) -> str:
        """Of this process, to managers."""
        return self._identity.name

    @property
    def obeyed(self) -> tuple[int, str]:
        """Term and name of the manager that was acknowledged last."""
        return self.voter.term, self.voter.manager

    def be_node(self, node: int) -> None:
        """A standby has become one, or a node a standby."""
        for link in self.links:
            link.node = node

    # -- speaking ----------------------------------------------------------------------------------

    @property
    def links(self) -> list[Link]:
        return [self.link, *self._others]

    @property
    def content(self) -> bool:
        return self.link.connected and self._confirmed

    @property
    def in_step(self) -> bool:
        """Whether everything that was said has been handed to the connection."""
        return self._outbox.in_step

    @property
    def unheard(self) -> int:
        """How many messages the manager is not known to have heard."""
        return len(self._outbox.kept)

    def send(self, message: Any) -> None:
        """To the manager: at once, or when there is one again that can take it."""
        if isinstance(message, PASSING):
            if self._outbox.in_step:
                self.link.send(message)
        elif isinstance(message, from_agent.Heartbeat):
            self.link.send(message)
        else:
            self._say(message, self._outbox.number + 1)

    def _say(self, message: Any, number: int) -> None:
        body = codec.encode(message)
        if self._outbox.add((self.link.node, body), number) and not self.link.say(body, number):
            self._outbox.in_step = False  # its queue is full

    def begin(self, message: Any) -> None:
        """Send what tells everything. A manager that is another one than before needs nothing of
        what was said until now."""
        anew = self._informed != self.link.manager
        self._informed = self.link.manager
        if anew:
            self._outbox.clear()
        number = self._outbox.number + 1
        self._say(message, -number if anew else number)

    def send_voter_state(self, link: Link | None = None) -> None:
        """Say where we stand."""
        voter = self.voter
        state = from_agent.VoterState(
            voter.term, voter.manager, voter.roster.stamp, self._members, self.content
        )
        (link or self.link).send(state)

    def orders(self) -> Iterator[Any]:
        """What managers say, but for what is between them and us, and what is not obeyed."""
        for link in self.links:
            while (message := link.receive()) is not None:
                between_us = self._between_us.get(type(message))
                if between_us is not None:
                    between_us(link, message)
                    continue
                # a manager of a later term does not ask a fenced agent for its vote, and what it
                # says is final
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
            for known, (node, body) in self._outbox.acknowledge(message.number):
                if not link.say(body, known, node):
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
        self._successor.learn(message)
        self._places = list(dict.fromkeys((*message.successors, *self._places)))[:PLACES]
        if message.stamp > self.voter.roster.stamp:
            self._members = message.members
        if self.voter.learn(Roster(message.stamp, frozenset(message.members))):
            link.send(from_agent.RosterKept(message.stamp))

    def _confirm(self, link: Link) -> None:
        """The manager that we obey has spoken as one that is in charge."""
        if link is self.link:
            self._confirmed, self._acknowledged = True, None

    def _change_to(self, link: Link) -> None:
        """Its manager was acknowledged."""
        if link is not self.link:
            self._outbox.in_step = False  # it asks who we are when it is in charge
        self._others = [other for other in self.links if other is not link]
        self.link, self._confirmed, self._acknowledged = link, False, time.monotonic()

    # -- looking -----------------------------------------------------------------------------------

    def read_monitors(self) -> None:
        for link in self.links:
            link.read_monitor()
            if link is self.link and (
                not link.connected or self._met.get(link) != link.connections
            ):
                self._confirmed = False
                # there was one before: what was under way in it may be lost
                if link.connections > link.connected:
                    self._outbox.in_step = False
            if link.connected and self._met.get(link) != link.connections:
                # whoever listens there now may be another one than before
                self._met[link] = link.connections
                self.send_voter_state(link)

    def tend(self, now: float) -> float | None:
        """Look for a manager where there is none; returns when to look again."""
        # the first one is waited for, where it was said to be
        if self.over or not self._successor.places:
            return None
        if self.content:
            if self._since is not None:
                self._be_content()
            return None
        if self._acknowledged is not None and self.link.connected:
            if now - self._acknowledged < PROVE:
                return self._acknowledged + PROVE
            log.warning(
                "the manager at %s:%d was acknowledged and has not taken charge", *self.link.address
            )
            self._acknowledged = None
        if self._since is None:
            self._since = self._said = now
            log.warning("the connection to the manager at %s:%d has ended", *self.link.address)
            self._look()
        if now - self._said > AGAIN:  # a manager that has started meanwhile has heard nothing of us
            self._said = now
            for link in self.links:
                if link.connected:
                    self.send_voter_state(link)
        if now - self._since >= STOPPED:
            self._successor.end_stopped(self.link.address, STOPPED)
        if now - self._since >= self._successor.patience(self.link.address):
            self._successor.start()
        return now + LOOK

    def _look(self) -> None:
        known = {link.address for link in self.links}
        log.info(
            "looking for a manager at %s",
            ", ".join(f"{host}:{port}" for host, port in self._places),
        )
        for address in self._places:
            if address not in known:
                other = Link(
                    address,
                    self._keys,
                    self._job,
                    self.link.node,
                    self._identity,
                    refusal=False,
                    nodes=self._nodes,
                )
                self._others.append(other)
                self.send_voter_state(other)  # waits in the queue until somebody is there

    def _be_content(self) -> None:
        self._since = None
        for other in self._others:
            self._met.pop(other, None)
            other.close()
        self._others = []
        self._successor.found(self.link.address)

    def close(self) -> None:
        for link in self.links:
            link.close()
        self._successor.close()

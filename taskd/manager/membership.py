"""The agents of a job as the manager knows them: name, connection and last message of each.

`core.nodes.admission` decides who is admitted; this module carries it out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from taskd.core import commands as c
from taskd.core import events as e
from taskd.core.coordinator import Coordinator
from taskd.manager import gathering
from taskd.manager.devices.node_info import NodeInfos
from taskd.manager.devices.state import Devices
from taskd.manager.outgoing import Outgoing
from taskd.manager.peers import (
    Dropped,
    Origin,
    Peer,
    check_agent,
    check_event,
    check_registration,
)
from taskd.manager.sentences import sentence
from taskd.messages import from_agent, to_agent
from taskd.messages.envelope import STANDBY, Envelope
from taskd.messages.values import DeviceState, Preparation
from taskd.mindcluster.faults.names import BadCode
from taskd.protocol import addresses
from taskd.protocol.addresses import Address
from taskd.protocol.liveness import LivenessProbe

log = logging.getLogger("taskd.manager")


@dataclass
class _Applicant:
    """A registration that `core` has not answered yet."""

    origin: Origin
    event: from_agent.AgentJoined


class Membership:
    def __init__(
        self,
        coordinator: Coordinator,
        out: Outgoing,
        liveness: LivenessProbe,
        feed: Callable[[e.Event, float], None],
        devices: Devices,
        node_infos: NodeInfos,
    ) -> None:
        """`feed` gives an event to `core`, and carries out its commands. `devices` decides which
        standbys are usable."""
        self._coordinator, self._out, self.liveness = coordinator, out, liveness
        self._settings, self._feed = coordinator.job.settings, feed
        self.agents: dict[int, Peer] = {}
        self.standbys: dict[str, Peer] = {}  # by process name
        # agents whose node moves to a standby, by process name
        self.former: dict[str, Peer] = {}
        self.fenced: dict[str, to_agent.Fence] = {}  # by process name
        self.seen: set[int] = set()  # nodes that have ever joined
        self.arrived: set[int] = set()  # whose launchers have ever come
        self._applicants: dict[str, _Applicant] = {}
        self._challenged: set[int] = set()  # nodes whose agents must show that they are alive
        self._asked: dict[bytes, float] = {}  # when an unknown agent was last asked to register
        self._now = 0.0  # of the current event
        self._devices, self._node_infos = devices, node_infos
        self._carry_out: dict[type, Callable[[Any], None]] = {
            c.Admit: self._admit,
            c.Refuse: self._refuse,
            to_agent.Fence: self._fence,
            c.Challenge: self._challenge,
            to_agent.Prepare: self._prepare,
            to_agent.TakeOver: self._take_over,
            to_agent.StandDown: self._stand_down,
        }

    @property
    def peers(self) -> list[Peer]:
        """All agents that are part of the job."""
        return [*self.agents.values(), *self.standbys.values(), *self.former.values()]

    def known(self, envelope: Envelope) -> Peer | None:
        """The agent that sent the envelope, if it is part of the job."""
        peer = self.agents.get(envelope.sender)
        if peer is not None and peer.agent == envelope.process:
            return peer
        return self.standbys.get(envelope.process) or self.former.get(envelope.process)

    # -- messages from agents ----------------------------------------------------------------------

    def hear(self, peer: Peer, origin: Origin, now: float) -> None:
        """Note a message from the agent. Raises Dropped if it is a repetition or out of order."""
        envelope, route = origin.envelope, origin.route
        if envelope.seq <= peer.seq:
            raise Dropped("late", f"node {peer.node}: message {envelope.seq} after {peer.seq}")
        moved, peer.route = route != peer.route, route
        if moved or peer.connection < 0:
            peer.connection = origin.descriptor
            self.liveness.forget(peer.agent)
        peer.seq, peer.last_heard = envelope.seq, now
        if moved:
            # messages in flight on the old connection may be lost: each end reports how far it has
            # received
            peer.outbox.in_step = False
            self._out.send_now(peer, to_agent.Ack(peer.inbox.number))
        if peer.node in self._challenged:
            self._challenged.discard(peer.node)
            self._feed(e.AgentAnswered(peer.node), now)
        if envelope.number and not peer.inbox.take(envelope.number):
            if envelope.number > peer.inbox.number:
                self.ask_again(peer)
            raise Dropped(
                "resent",
                f"node {peer.node}: number {envelope.number} after {peer.inbox.number}",
            )

    def ask_again(self, peer: Peer) -> None:
        """Have the agent resend what was lost after the last message received: two equal
        acknowledgments make it do so (protocol.delivery)."""
        for _ in range(2):
            self._out.send_now(peer, to_agent.Ack(peer.inbox.number))

    def acknowledge(self, peer: Peer, number: int) -> None:
        """The agent has every order up to `number`: send the missing ones."""
        for _, data in peer.outbox.acknowledge(number):
            if not self._out.put(peer.route, data):
                peer.outbox.in_step = False
                break

    def register(self, origin: Origin, event: from_agent.AgentJoined, now: float) -> None:
        """Handle an agent's registration for its node."""
        try:
            check_agent(event.agent, origin.envelope)
            check_registration(event, origin.envelope.sender, self._settings.nodes)
        except Dropped as reason:
            self._out.reply(origin.route, to_agent.RegistrationRefused(str(reason)))
            raise
        self._applicants[event.agent] = _Applicant(origin, event)
        self._now = now
        if event.node not in self.agents:
            # before anything else: a new manager may be waiting only for this registration
            applicant = _peer(origin, event.node, now)
            applicant.records, applicant.ranks = event.records, event.ranks
            self._devices.publish(applicant, now)
        self._feed(event, now)
        self.challenge(now)
        peer = self.agents.get(event.node)
        if peer is not None and peer.agent == event.agent:
            self._devices.publish(peer, now)

    def stand_by(self, origin: Origin, message: Any, now: float) -> None:
        """Handle a message from an agent without a node."""
        envelope = origin.envelope
        peer = self.standbys.get(envelope.process)
        if peer is not None:
            self.hear(peer, origin, now)
        if isinstance(message, from_agent.StandbyJoined):
            self._stand_by(origin, message, peer, now)
        elif peer is None:
            self.remind(origin.route, to_agent.RegisterAgain(), now)
        elif isinstance(message, from_agent.NodePrepared | from_agent.PreparationFailed):
            check_agent(message.agent, envelope)
            self._feed(message, now)
        elif isinstance(message, from_agent.DevicesFound | from_agent.DevicesAt):
            check_event(message, peer)
            self.device_info(peer, message, now)
        elif not isinstance(message, from_agent.Heartbeat):
            raise Dropped("direction", f"a standby sent {type(message).__name__}")

    def _stand_by(
        self, origin: Origin, message: from_agent.StandbyJoined, peer: Peer | None, now: float
    ) -> None:
        check_agent(message.agent, origin.envelope)
        if peer is None:
            name, room = message.agent[:8], message.ranks
            log.info("standby %s has registered, for up to %d ranks", name, room)
            peer = self.standbys[message.agent] = _peer(origin, STANDBY, now)
        peer.records, peer.ranks = message.records, (0,) * message.ranks
        peer.about = message.about
        self._asked.pop(origin.route, None)
        self._offer(peer, now, message.prepares)

    def device_info(
        self, peer: Peer, message: from_agent.DevicesFound | from_agent.DevicesAt, now: float
    ) -> None:
        """Handle an agent's report about its devices. It may report only its own ranks' devices,
        and needs no operator's permission: see docs/security.md."""
        if isinstance(message, from_agent.DevicesAt):
            self._node_infos.at(peer, message, now)
            return
        try:
            self.follow_devices(peer, message.devices, now)
        except BadCode as error:
            raise Dropped("device-info", str(error)) from None

    def follow_devices(self, peer: Peer, found: Sequence[DeviceState], now: float) -> None:
        """Apply device-info for an agent's devices."""
        before = self._devices.against(peer, now)
        self._devices.follow(peer, found, now)
        if peer.agent in self.standbys and before != self._devices.against(peer, now):
            self._offer(peer, now)

    def offer_all(self, now: float) -> None:
        """Check all standbys again: device faults have changed, so they may have become usable or
        unusable."""
        for standby in list(self.standbys.values()):
            self._offer(standby, now)

    def _offer(self, standby: Peer, now: float, prepares: Preparation | None = None) -> None:
        name, room = standby.agent, len(standby.ranks)
        if why := self._devices.against(standby, now):
            log.warning("standby %s is not used: %s", name[:8], why)
            topology = self._coordinator.job.topology
            given = (node.assignee for node in topology.nodes.values())
            if name in topology.standbys or name in given:
                self._feed(e.StandbyLost(name, why), now)
        else:
            joined = from_agent.StandbyJoined(name, room, standby.records, prepares)
            self._feed(joined, now)

    def node_taken(self, origin: Origin, event: from_agent.NodeTaken, now: float) -> None:
        """Handle the report of a standby that has become a node."""
        check_agent(event.agent, origin.envelope)
        standby = self.standbys.get(event.agent)
        if standby is None or origin.envelope.sender != event.node:
            raise Dropped(
                "registration",
                f"agent {event.agent[:8]} has taken node {event.node} but is not a standby",
            )
        self.hear(standby, origin, now)
        standby.records = event.records
        self._feed(event, now)
        if self.agents.get(event.node) is standby:
            self._devices.publish(standby, now)

    def remind(self, route: bytes, order: Any, now: float) -> None:
        """Answer an agent that is unknown or fenced; once a second, however much it sends."""
        if now - self._asked.get(route, float("-inf")) >= 1.0:
            if len(self._asked) > 2 * self._settings.nodes + 100:
                self._asked.clear()
            self._asked[route] = now
            self._out.reply(route, order)

    # -- agents that are gone ----------------------------------------------------------------------

    def lose(self, peer: Peer, why: str, now: float) -> None:
        self.liveness.forget(peer.agent)
        if self.former.pop(peer.agent, None) is not None:
            self._feed(e.FormerLost(peer.node, peer.agent, why), now)
        elif peer.node == STANDBY:
            log.warning("standby %s is lost: %s", peer.agent[:8], why)
            self.standbys.pop(peer.agent, None)
            self._feed(e.StandbyLost(peer.agent, why), now)
        else:
            log.info("node %d is lost: %s", peer.node, why)  # a notice says it on standard error
            self._challenged.discard(peer.node)
            self.agents.pop(peer.node, None)
            self._feed(e.AgentLost(peer.node, why), now)

    def challenge(self, now: float) -> None:
        """Ask the agents that must show that they are alive, and have not done so, to register
        again."""
        for node in list(self._challenged):
            peer = self.agents.get(node)
            # an agent that is alive registers again, which changes nothing
            if peer is None:
                self._challenged.discard(node)
            elif not self._out.put(peer.route, self._out.seal(to_agent.RegisterAgain())):
                why = "its agent is gone and another one has registered for the node"
                self.lose(peer, why, now)

    # -- what `core` commands ----------------------------------------------------------------------

    @property
    def commands(self) -> tuple[type, ...]:
        """The commands that `carry_out` takes."""
        return tuple(self._carry_out)

    def carry_out(self, command: c.Command) -> None:
        self._carry_out[type(command)](command)

    def _admit(self, command: c.Admit) -> None:
        standby = self.standbys.pop(command.agent, None)
        if standby is not None:
            node = self._coordinator.job.topology.nodes[command.node]
            standby.node, standby.ranks = command.node, node.ranks
            self.agents[command.node] = standby
            self.seen.add(command.node)
            return
        if (applicant := self._applicants.pop(command.agent, None)) is None:
            return
        event = applicant.event
        peer = self.agents.get(command.node)
        if peer is None or peer.agent != command.agent:
            ranks = list(event.ranks)
            log.info("node %d joined with ranks %s, epoch %d", event.node, ranks, event.epoch)
            peer = self.agents[event.node] = _peer(applicant.origin, event.node, self._now)
        peer.ranks, peer.records, peer.about = event.ranks, event.records, event.about
        if event.node not in self.seen:
            # compared with one node, not with all: there may be 100,000
            some = {n: p.about for n, p in islice(self.agents.items(), 2)}
            if text := gathering.differs(event.node, peer.about, some):
                log.warning("%s", text)
        self._asked.pop(applicant.origin.route, None)
        self.seen.add(event.node)

    def miss_nodes(self, place: Address) -> None:
        """Warn of nodes that have never joined and are not lost. `place`: where it listens."""
        job = self._coordinator.job
        election, known = job.election, self.seen | {*job.topology.lost}
        if election.candidate.successor and not election.in_charge:
            log.warning(
                "this manager, which an agent has started, is not in charge: more than half of the"
                " job's agents must reach it at %s",
                addresses.text(place),
            )
        elif why := gathering.missing(
            self._settings.nodes, known, self.arrived, addresses.text(place)
        ):
            log.warning("%s", why)

    def _refuse(self, command: c.Refuse) -> None:
        log.warning("node %d is refused: %s", command.node, command.reason)
        if (applicant := self._applicants.pop(command.agent, None)) is not None:
            self._out.reply(applicant.origin.route, to_agent.RegistrationRefused(command.reason))

    def _fence(self, command: to_agent.Fence) -> None:
        """Notify the agent, and ignore its process from now on."""
        log.warning("agent %s is fenced: %s", command.agent[:8], command.reason)
        self.fenced[command.agent] = command
        applicant = self._applicants.pop(command.agent, None)
        peer = self.agents.get(command.node)
        if peer is not None and peer.agent == command.agent:
            self._out.send(peer, command)
            del self.agents[command.node]
        elif (
            other := self.standbys.pop(command.agent, None) or self.former.pop(command.agent, None)
        ) is not None:
            self._out.send(other, command)
        elif applicant is not None:
            self.remind(applicant.origin.route, command, self._now)

    def _challenge(self, command: c.Challenge) -> None:
        self._challenged.add(command.node)

    def _prepare(self, command: to_agent.Prepare) -> None:
        log.info("%s", sentence(command))
        self._send_standby(command)

    def _take_over(self, command: to_agent.TakeOver) -> None:
        log.info("%s", sentence(command))
        former = self.agents.get(command.node)
        if former is not None and former.agent == command.former:
            self._out.send(former, command)
            self.former[former.agent] = self.agents.pop(command.node)
        self._send_standby(command)

    def _stand_down(self, command: to_agent.StandDown) -> None:
        """Keep a standby from becoming the node, or make it a standby again; the node's former
        agent, if any, gets it back."""
        log.warning("%s", sentence(command))
        applicant = self._applicants.pop(command.agent, None)
        peer = self.agents.get(command.node)
        if peer is not None and peer.agent == command.agent:
            del self.agents[command.node]
            peer.node, peer.ranks = STANDBY, (0,) * len(peer.ranks)
            self.standbys[command.agent] = peer
        if not self._send_standby(command) and applicant is not None:
            self._out.reply(applicant.origin.route, command)
        for former in [p for p in self.former.values() if p.node == command.node]:
            self.agents[command.node] = self.former.pop(former.agent)

    def _send_standby(
        self, command: to_agent.Prepare | to_agent.TakeOver | to_agent.StandDown
    ) -> bool:
        if (standby := self.standbys.get(command.agent)) is not None:
            self._out.send(standby, command)
        return standby is not None


def _peer(origin: Origin, node: int, now: float) -> Peer:
    envelope = origin.envelope
    peer = Peer(node, envelope.process, origin.route, (), envelope.seq, now)
    peer.connection, peer.inbox.number = origin.descriptor, abs(envelope.number)
    return peer

"""Incoming messages: checks the sender and its permission, and dispatches them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import zmq

from taskd.core.coordinator import Coordinator
from taskd.core.hang.evenness import Evenness
from taskd.manager import peers
from taskd.manager.history.writer import JournalWriter
from taskd.manager.limits import ManagerLimits
from taskd.manager.membership import Membership
from taskd.manager.operators import Operators
from taskd.manager.outgoing import Outgoing
from taskd.manager.peers import Dropped, Origin, Peer
from taskd.manager.voters import Voters
from taskd.messages import from_agent, from_rank, to_agent, to_operator
from taskd.messages.envelope import OPERATOR, STANDBY, unseal
from taskd.protocol.addresses import Address
from taskd.protocol.gate import speaker


class Incoming:
    def __init__(
        self,
        job: str,
        coordinator: Coordinator,
        members: Membership,
        voters: Voters,
        operators: Operators,
        out: Outgoing,
        journal_writer: JournalWriter,
        feed: Callable[..., None],
        starting: Callable[[], bool],
        clock: Callable[[], float],
    ) -> None:
        """`feed` gives an event to `core`, with the time at which it happened if that is known.
        `starting`: whether the launcher that started this manager still runs; that of node 0, if
        launchers know their nodes."""
        self._job, self._coordinator, self._members = job, coordinator, members
        self._voters, self._operators, self._out = voters, operators, out
        self._journal_writer, self._feed, self._starting, self._clock = (
            journal_writer,
            feed,
            starting,
            clock,
        )
        self._evenness = Evenness()
        # agents whose messages were dropped while this manager was not in charge
        self._overheard: set[str] = set()
        self._rendezvous = ""  # where the job's launchers meet, by the first that named one
        self._last_launcher = clock()  # when there was one, or one asked
        self._last_arrival = clock()
        self._from_anybody: dict[type, Callable[[Origin, Any, float], None]] = {
            from_agent.VoterState: self._vote,
            from_agent.Vote: self._vote,
            from_agent.RosterKept: self._vote,
            to_agent.Ack: self._delivery,
            from_agent.Heartbeat: self._delivery,
        }

    def handle(self, frames: list[bytes], first: zmq.Frame, now: float) -> None:
        """Check a message and hand it to its handler. Raises Dropped and BadMessage."""
        if len(frames) != 2:
            raise Dropped("frames", f"a message of {len(frames) - 1} frames; allowed is 1")
        envelope = unseal(frames[1])
        peers.check_speaker(envelope, speaker(first))
        peers.check_envelope(envelope, self._job)
        origin = Origin(frames[0], envelope, first)
        if (fence := self._members.fenced.get(envelope.process)) is not None:
            self._members.remind(origin.route, fence, now)
            raise Dropped("fenced", f"agent {envelope.process[:8]}: {fence.reason}")
        message = peers.decode(envelope)
        if envelope.sender == OPERATOR:
            self._operators.request(origin.route, message, now)
            return
        handler = self._from_anybody.get(type(message), self._from_agent)
        handler(origin, message, now)

    def ask_again(self) -> None:
        """Once in charge, request the messages dropped before."""
        if self._overheard and self._coordinator.election.in_charge:
            for peer in [p for p in self._members.peers if p.agent in self._overheard]:
                self._members.ask_again(peer)
            self._overheard.clear()

    def alone(self, now: float, limit: float) -> str:
        """Why this manager leaves: it has had no launcher for `limit` seconds. "" if it stays."""
        if self._members.peers:
            self._last_launcher = now
        if now - self._last_launcher < limit:
            return ""
        return (
            f"no launcher has come for {limit:g} s (TASKD_LAUNCHER_WAIT): start them with this"
            " manager's address (--master_addr, or TASKD_MANAGER_ADDR) and port (TASKD_PORT)"
        )

    def excuse(self, seconds: float) -> None:
        """The manager was stopped that long: no launcher could be heard."""
        self._last_launcher += seconds

    # -- by kind of message ------------------------------------------------------------------------

    def _vote(self, origin: Origin, message: Any, now: float) -> None:
        peer = self._members.known(origin.envelope)
        if peer is not None:
            self._members.hear(peer, origin, now)
        self._feed(self._voters.event(message, origin), now)

    def _delivery(
        self, origin: Origin, message: to_agent.Ack | from_agent.Heartbeat, now: float
    ) -> None:
        peer = self._members.known(origin.envelope)
        if peer is None:
            self._from_agent(origin, message, now)
            return
        self._members.hear(peer, origin, now)
        if isinstance(message, to_agent.Ack):
            self._members.acknowledge(peer, message.number)
            return
        if message.unheard or peer.outbox.kept:
            self._out.send_now(peer, to_agent.Ack(peer.inbox.number))
        if message.progress is not None and self._members.agents.get(peer.node) is peer:
            said = self._journal_writer.heard(peer.node, peer.ranks, message.progress, now)
            if said is not None:
                self._feed(said, now)
            ranks = self._coordinator.job.ranks
            uneven = self._evenness.heard(peer.node, message.progress, ranks)
            if uneven is not None:
                self._feed(uneven, now)
        # `now` is that of the turn, and so too early for a message read late in it
        if message.asked:
            if peer.clock.answered(message.asked, origin.envelope.at, self._clock()):
                self._journal_writer.clock(peer)
        elif peer.clock.due(now):
            self._out.send_now(peer, to_agent.TimeAsked(peer.clock.ask(self._clock())))

    # -- by sender ---------------------------------------------------------------------------------

    def _from_agent(self, origin: Origin, message: Any, now: float) -> None:
        envelope, members = origin.envelope, self._members
        if not self._coordinator.election.in_charge:
            self._overheard.add(envelope.process)
            raise Dropped(
                "not in charge",
                f"node {envelope.sender}: {type(message).__name__}; a majority must acknowledge"
                " this manager first",
            )
        if envelope.sender == STANDBY:
            if isinstance(message, from_agent.Arrived):
                self._arrived(origin.route, message)
            else:
                members.stand_by(origin, message, now)
        elif isinstance(message, from_agent.NodeTaken):
            members.node_taken(origin, message, now)
        elif (former := members.former.get(envelope.process)) is not None:
            self._from_former(former, origin, message, now)
        elif isinstance(message, from_agent.AgentJoined):
            self._registration(origin, message, now)
        elif (peer := members.known(envelope)) is not None:
            self._from_member(peer, origin, message, now)
        else:
            members.remind(origin.route, to_agent.RegisterAgain(), now)

    def _registration(self, origin: Origin, message: from_agent.AgentJoined, now: float) -> None:
        peer = self._members.agents.get(origin.envelope.sender)
        if peer is not None and peer.agent == origin.envelope.process:
            self._members.hear(peer, origin, now)
            if self._members.agents.get(peer.node) is not peer:
                return  # another agent has the node by now
        self._members.register(origin, message, now)

    def _from_member(self, peer: Peer, origin: Origin, message: Any, now: float) -> None:
        members = self._members
        members.hear(peer, origin, now)
        if members.agents.get(peer.node) is not peer:
            return  # another agent has the node by now
        if isinstance(message, from_agent.May):
            self._permit(peer, message)
            return
        peers.check_event(message, peer)
        if isinstance(message, from_rank.Injected):
            self._operators.answer(to_operator.Answer(message.request, message.ok, message.text))
            return
        if isinstance(message, from_agent.DevicesFound | from_agent.DevicesAt):
            members.device_info(peer, message, now)
            return
        at = peer.clock.ours(origin.envelope.at, now)
        if isinstance(message, from_agent.RankDied):
            self._journal_writer.died(peer.node, message)
        self._feed(message, now, at)
        # one that has ended well waits for the others
        if isinstance(message, from_agent.AgentLeft) and not message.ok:
            members.agents.pop(peer.node, None)

    def _from_former(self, former: Peer, origin: Origin, message: Any, now: float) -> None:
        """Handle a message from the agent of a node that moves; it registers again if it gets its
        node back."""
        self._members.hear(former, origin, now)
        if isinstance(message, from_agent.May):
            self._permit(former, message)
        elif isinstance(message, from_agent.AgentLeft):
            why = f": {message.why}" if message.why else ""
            self._members.lose(former, f"its launcher has left{why}", now)

    def _permit(self, peer: Peer, question: from_agent.May) -> None:
        """Answer an agent that asks whether another one may keep records there, or fetch them."""
        ranks = self._coordinator.admission.may(
            peer.node, question.node, question.agent, fetch=question.fetch
        )
        granted = ranks is not None
        self._out.send(
            peer,
            to_agent.Permit(question.node, question.agent, question.fetch, granted, ranks or ()),
        )

    def miss_nodes(self, place: Address, now: float, limits: ManagerLimits) -> float:
        """Warn of nodes that have never joined, once their launchers have had time to meet.
        `place`: where the manager listens. Returns when to look again."""
        members = self._members
        meeting = self._last_arrival + limits.meeting
        come = len(members.seen | members.arrived)
        if now < meeting and come >= self._coordinator.job.settings.nodes:
            return meeting
        members.miss_nodes(place)
        return now + limits.next_warning

    def _arrived(self, route: bytes, message: from_agent.Arrived) -> None:
        """Answer a launcher that has just started: is the job under way, and its node taken?"""
        self._rendezvous = self._rendezvous or message.rendezvous
        self._last_launcher = self._clock()
        if message.node >= 0:
            self._members.arrived.add(message.node)
            self._last_arrival = self._clock()
        nodes = range(self._coordinator.job.settings.nodes) if message.node < 0 else [message.node]
        agents = [self._members.agents.get(node) for node in nodes]
        taken = all(peer is not None and peer.connection >= 0 for peer in agents) or (
            message.node == 0 and self._starting()
        )
        under_way, replaces = self._coordinator.under_way, self._coordinator.job.replaces
        self._out.reply(route, to_agent.UnderWay(under_way, replaces, taken, self._rendezvous))

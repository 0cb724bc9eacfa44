"""The agents of a job, as the manager knows them: who has a node, who waits for one, who has to
leave.

Whether an agent is admitted is decided in `core`: `core.terms` (is it one of the job's?) and
`core.coordinator` (has the node another agent?). Here is who has said what, on which connection,
and when.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from taskd.core import commands as c
from taskd.core import events as e
from taskd.core.coordinator import Coordinator
from taskd.manager.charge import Charge
from taskd.manager.device_watch import DeviceWatch
from taskd.manager.lookout import Lookout
from taskd.manager.outgoing import Outgoing
from taskd.manager.peers import Dropped, Peer, check_agent, check_registration
from taskd.messages import from_agent, from_rank, to_agent
from taskd.messages.envelope import STANDBY, Envelope

MAX_ROOM = 4096  # ranks on a node, as many as a state page has slots

log = logging.getLogger("taskd.manager")


@dataclass
class _Parked:
    """A registration of a node whose agent seems to be alive: decided when that agent speaks, or is
    gone."""

    route: bytes
    envelope: Envelope
    event: from_agent.AgentJoined


class Membership:
    def __init__(
        self,
        coordinator: Coordinator,
        charge: Charge,
        out: Outgoing,
        lookout: Lookout,
        host: str,
        descriptor: Callable[[], int],
        carry_out: Callable[[list[c.Command], float], None],
    ) -> None:
        """`descriptor` of the connection by which the message at hand has come. `carry_out`: what
        `core` commands."""
        self._coordinator, self._charge, self._out, self._lookout = (
            coordinator,
            charge,
            out,
            lookout,
        )
        self._settings, self._host, self._descriptor, self._carry_out = (
            coordinator.job.settings,
            host,
            descriptor,
            carry_out,
        )
        self.agents: dict[int, Peer] = {}
        self.standbys: dict[str, Peer] = {}  # by the name of their process
        # agents whose node moves to a standby, by the name of the process
        self.former: dict[str, Peer] = {}
        self.fenced: dict[str, to_agent.Fence] = {}  # by the name of the process
        self.parked: dict[int, _Parked] = {}
        self.seen: set[int] = set()  # nodes that have ever joined
        self._asked: dict[bytes, float] = {}  # when a stranger was last asked who it is
        self._devices: DeviceWatch

    def watch(self, devices: DeviceWatch) -> None:
        """`devices` says which standbys cannot be used."""
        self._devices = devices

    def _feed(self, event: e.Event, now: float) -> None:
        self._carry_out(self._coordinator.step(event, now), now)

    @property
    def peers(self) -> list[Peer]:
        """All agents that are part of the job."""
        return [*self.agents.values(), *self.standbys.values(), *self.former.values()]

    def hear(self, peer: Peer, envelope: Envelope, route: bytes, now: float) -> None:
        """Note that the agent has spoken. Raises Dropped for what is not news, or comes before its
        turn."""
        if envelope.seq <= peer.seq:
            raise Dropped("late", f"node {peer.node}: message {envelope.seq} after {peer.seq}")
        moved, peer.route = route != peer.route, route
        if moved or peer.line < 0:
            peer.line = self._descriptor()
            self._lookout.forget(peer.incarnation)
        peer.seq, peer.heard = envelope.seq, now
        if moved:
            # what was under way on the old connection may be lost: each end says how far it has
            # heard
            peer.outbox.in_step = False
            self._out.send_now(peer, to_agent.Heard(peer.inbox.number))
        if peer.node in self.parked:
            self.settle(peer.node, now, spoke=True)
        if envelope.number and not peer.inbox.take(envelope.number):
            if envelope.number > peer.inbox.number:
                self.ask_again(peer)
            raise Dropped(
                "said again",
                f"node {peer.node}: number {envelope.number} after {peer.inbox.number}",
            )

    def ask_again(self, peer: Peer) -> None:
        """What the agent has said after the last that we have heard is lost: told so twice, it says
        it again (core.delivery)."""
        for _ in range(2):
            self._out.send_now(peer, to_agent.Heard(peer.inbox.number))

    def heard(self, peer: Peer, number: int) -> None:
        """The agent has everything up to order `number`."""
        for _, data in peer.outbox.heard(number):
            if not self._out.put(peer.route, data):
                peer.outbox.in_step = False
                break

    def known(self, envelope: Envelope) -> Peer | None:
        """The agent that speaks."""
        peer = self.agents.get(envelope.sender)
        if peer is not None and peer.incarnation == envelope.incarnation:
            return peer
        return self.standbys.get(envelope.incarnation) or self.former.get(envelope.incarnation)

    def register(
        self, route: bytes, envelope: Envelope, event: from_agent.AgentJoined, now: float
    ) -> None:
        try:
            check_agent(event.agent, envelope)
            check_registration(event, envelope.sender, self._settings.nodes)
        except Dropped as reason:
            self._out.reply(route, to_agent.Refused(str(reason)))
            raise
        if envelope.incarnation in self._coordinator.job.topology.stood_down:
            self._out.reply(
                route,
                to_agent.StandDown(envelope.incarnation, event.node, "the node stays where it is"),
            )
            return
        peer = self.agents.get(event.node)
        other = peer is not None and peer.incarnation != envelope.incarnation
        if self._charge.stranger(envelope.incarnation) or (
            other and self._coordinator.job.protected
        ):
            why = (
                f"node {event.node} has another agent: this one was replaced, or has the"
                " --node_rank of another node"
            )
            self.fence(to_agent.Fence(envelope.incarnation, event.node, why))
            self.turn_away(route, self.fenced[envelope.incarnation], now)
            if peer is not None and not self._out.put(peer.route, self._out.seal(to_agent.Who())):
                self.lose(
                    peer, "its agent is gone and another one has registered for the node", now
                )
            return
        if other:
            self.parked[event.node] = _Parked(route, envelope, event)
            self.settle(event.node, now)
            return
        before = self._coordinator.job.topology.nodes.get(event.node)
        commands = self._coordinator.step(event, now)
        entry = self._coordinator.job.topology.nodes.get(event.node)
        if any(
            isinstance(command, to_agent.Fence) and command.agent == envelope.incarnation
            for command in commands
        ):
            self._carry_out(commands, now)
            self.turn_away(route, self.fenced[envelope.incarnation], now)
            return
        if entry is None or (entry.ranks, entry.store, entry.epoch) != (
            event.ranks,
            event.store,
            event.epoch,
        ):
            why_not = next(
                (command.text for command in commands if isinstance(command, c.Note)),
                "the job is over",
            )
            log.warning("node %d is refused: %s", event.node, why_not)
            self._out.reply(route, to_agent.Refused(why_not))
            return
        if peer is None:
            log.info(
                "node %d joined with ranks %s, epoch %d", event.node, list(event.ranks), event.epoch
            )
            peer = self.agents[event.node] = Peer(
                event.node, envelope.incarnation, route, event.ranks, envelope.seq, now
            )
            peer.line, peer.inbox.number = self._descriptor(), abs(envelope.number)
        peer.ranks, peer.records = event.ranks, event.records
        self._asked.pop(route, None)
        self.seen.add(event.node)
        self._carry_out(commands, now)
        self._devices.stands(peer, now)
        # what a reconnected agent tells may be news (the event was lost with the connection); else
        # it changes nothing
        incarnations = dict(
            zip(event.ranks, event.incarnations or (0,) * len(event.ranks), strict=True)
        )
        if event.generation == 0:
            for rank in event.joined:
                self._feed(from_rank.RankJoined(rank, incarnations[rank]), now)
        if before is not None and before.epoch == event.epoch:
            for rank, left in zip(
                event.dead, event.left or (None,) * len(event.dead), strict=False
            ):
                self._feed(
                    from_agent.RankDied(
                        rank, incarnations[rank], "died while its agent was out of reach", left
                    ),
                    now,
                )

    def settle(self, node: int, now: float, spoke: bool = False) -> None:
        """Decide on a second agent of a node: refused when the first speaks and can be reached,
        admitted when it is gone."""
        parked, peer = self.parked[node], self.agents.get(node)
        if peer is None:
            del self.parked[node]
            self.register(parked.route, parked.envelope, parked.event, now)
        # answered by registering again, which changes nothing
        elif not self._out.put(peer.route, self._out.seal(to_agent.Who())):
            self.lose(peer, "its agent is gone and another one has registered for the node", now)
            if not self._coordinator.job.over:
                self.settle(node, now)
        elif spoke:
            del self.parked[node]
            reason = (
                f"node {node} has a living agent already: give each node another --node_rank, or"
                " end the other one"
            )
            log.warning("a second agent was refused: %s", reason)
            self._out.reply(parked.route, to_agent.Refused(reason))

    def stand_by(self, route: bytes, envelope: Envelope, message: Any, now: float) -> None:
        """What an agent without a node says."""
        peer = self.standbys.get(envelope.incarnation)
        if peer is not None:
            self.hear(peer, envelope, route, now)
        if isinstance(message, from_agent.StandbyJoined):
            check_agent(message.agent, envelope)
            if not 1 <= message.ranks <= MAX_ROOM or not 0 <= message.records[1] <= 65535:
                raise Dropped("registration", f"a standby for {message.ranks} ranks")
            if peer is None:
                log.info(
                    "standby %s has registered, for up to %d ranks",
                    message.agent[:8],
                    message.ranks,
                )
                peer = self.standbys[message.agent] = Peer(
                    STANDBY, message.agent, route, (), envelope.seq, now
                )
                peer.line, peer.inbox.number = self._descriptor(), abs(envelope.number)
            peer.records, peer.ranks = message.records, (0,) * message.ranks
            self._asked.pop(route, None)
            self._charge.chair.want(message.agent, True)
            self.admit(peer, now)
        elif peer is None:
            self.ask(route, now)
        elif isinstance(message, from_agent.NodePrepared | from_agent.PreparationFailed):
            check_agent(message.agent, envelope)
            self._feed(message, now)
        elif not isinstance(message, from_agent.Heartbeat):
            raise Dropped("direction", f"a standby sent {type(message).__name__}")

    def node_taken(
        self, route: bytes, envelope: Envelope, event: from_agent.NodeTaken, now: float
    ) -> None:
        """A standby is a node from here on."""
        check_agent(event.agent, envelope)
        standby = self.standbys.get(event.agent)
        node = self._coordinator.job.topology.nodes.get(event.node)
        if standby is None or node is None or envelope.sender != event.node:
            raise Dropped(
                "registration",
                f"agent {event.agent[:8]} has taken node {event.node}, and is no standby",
            )
        self.hear(standby, envelope, route, now)
        commands = self._coordinator.step(event, now)
        if self._coordinator.job.topology.nodes[event.node].agent == event.agent:
            del self.standbys[event.agent]
            standby.node, standby.ranks, standby.records = event.node, node.ranks, event.records
            self.agents[event.node] = standby
        self._carry_out(commands, now)
        if self.agents.get(event.node) is standby:
            self._devices.stands(standby, now)

    def admit_all(self, now: float) -> None:
        for standby in list(self.standbys.values()):
            self.admit(standby, now)

    def admit(self, standby: Peer, now: float) -> None:
        """A standby may take a node over once it is one of those that vote: see core.terms."""
        chair = self._charge.chair
        if why := self._devices.against(standby, now):
            log.warning("standby %s is not used: %s", standby.incarnation[:8], why)
        elif chair.fresh or chair.member(standby.incarnation):
            self._feed(
                from_agent.StandbyJoined(standby.incarnation, len(standby.ranks), standby.records),
                now,
            )

    def everybody(self) -> list[tuple[str, str, int]]:
        """Names, machines and nodes of all agents, those first on whose machine a manager is
        started first: ours, then by node."""
        peers = [
            *(p for _, p in sorted(self.agents.items())),
            *self.former.values(),
            *self.standbys.values(),
        ]
        return sorted(
            ((p.incarnation, p.records[0], p.node) for p in peers),
            key=lambda known: known[1] != self._host,
        )

    def turn_away(self, route: bytes, fence: to_agent.Fence, now: float) -> None:
        """A fenced agent is told so; once a second, however much it says."""
        if now - self._asked.get(route, float("-inf")) >= 1.0:
            self._asked[route] = now
            self._out.reply(route, fence)

    def ask(self, route: bytes, now: float) -> None:
        """A stranger is asked who it is; once a second, however much it has in the queue."""
        if now - self._asked.get(route, float("-inf")) >= 1.0:
            if len(self._asked) > 2 * self._settings.nodes + 100:
                self._asked.clear()
            self._asked[route] = now
            self._out.reply(route, to_agent.Who())

    def permit(self, peer: Peer, question: from_agent.May) -> None:
        """An agent asks whether another one's records are its business: see core.topology."""
        topology = self._coordinator.job.topology
        asked = topology.may_fetch if question.fetch else topology.may_keep
        node, each = topology.nodes.get(question.node), self._settings.ranks_per_node
        granted = asked(peer.node, question.node, question.agent)
        if (
            question.fetch
            and self._charge.chair.term > 1
            and question.agent in self._charge.chair.roster.members
        ):
            granted = granted or topology.had_been_given(question.node, question.agent)
        ranks = tuple(range(question.node * each, question.node * each + each)) if granted else ()
        self._out.send(
            peer,
            to_agent.Permit(
                question.node,
                question.agent,
                question.fetch,
                granted,
                node.ranks if granted and node else ranks,
            ),
        )

    def lose(self, peer: Peer, why: str, now: float) -> None:
        self._lookout.forget(peer.incarnation)
        if self.former.pop(peer.incarnation, None) is not None:
            self._feed(e.FormerLost(peer.node, peer.incarnation, why), now)
            return
        if peer.node == STANDBY:
            log.warning("standby %s is lost: %s", peer.incarnation[:8], why)
            self.standbys.pop(peer.incarnation, None)
            self._charge.chair.want(peer.incarnation, False)
            self._feed(e.StandbyLost(peer.incarnation, why), now)
            return
        log.warning("node %d is lost: %s", peer.node, why)
        self.agents.pop(peer.node, None)
        self._feed(e.AgentLost(peer.node, why), now)

    def carry_out(
        self, command: to_agent.TakeOver | to_agent.Prepare | to_agent.StandDown | to_agent.Fence
    ) -> None:
        """What `core` commands about who has a node."""
        if isinstance(command, to_agent.Fence):
            self.fence(command)
        elif isinstance(command, to_agent.StandDown):
            self.stand_down(command)
        else:
            log.info("%s", command)
            if isinstance(command, to_agent.TakeOver):
                self._give_away(command)
            self.send_standby(command)

    def _give_away(self, command: to_agent.TakeOver) -> None:
        if (
            former := self.agents.get(command.node)
        ) is not None and former.incarnation == command.former:
            self.former[former.incarnation] = self.agents.pop(command.node)
        before = self._charge.holder(command.node) if not command.former else ""
        # lost with the manager before this one
        if before and before != command.agent and before not in self.fenced:
            self.fence(to_agent.Fence(before, command.node, command.reason))

    def fence(self, command: to_agent.Fence) -> None:
        """From here on nothing that this process says is heard."""
        log.warning("agent %s is fenced: %s", command.agent[:8], command.reason)
        self.fenced[command.agent] = command
        self._charge.chair.want(command.agent, False)
        peer = self.agents.get(command.node)
        if peer is not None and peer.incarnation == command.agent:
            self._out.send(peer, command)
            del self.agents[command.node]
        elif (
            other := self.standbys.pop(command.agent, None) or self.former.pop(command.agent, None)
        ) is not None:
            self._out.send(other, command)

    def send_standby(
        self, command: to_agent.Prepare | to_agent.TakeOver | to_agent.StandDown
    ) -> None:
        if (standby := self.standbys.get(command.agent)) is not None:
            self._out.send(standby, command)

    def stand_down(self, command: to_agent.StandDown) -> None:
        """A standby is not to be the node; if it was already, whoever has had the node has it
        again."""
        log.warning("%s", command)
        peer = self.agents.get(command.node)
        if peer is not None and peer.incarnation == command.agent:
            del self.agents[command.node]
            peer.node, peer.ranks = STANDBY, (0,) * len(peer.ranks)
            self.standbys[command.agent] = peer
        self.send_standby(command)
        for former in [p for p in self.former.values() if p.node == command.node]:
            self.agents[command.node] = self.former.pop(former.incarnation)
            self._out.send_now(former, to_agent.Who())  # what it has said meanwhile was not heard

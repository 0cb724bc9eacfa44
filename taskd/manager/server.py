"""The manager's loop: one thread, one poller. Messages and timers in, `Coordinator.step`, commands out.

Nothing in here blocks but the poll, and the poll sleeps until the next message, deadline or look at who is silent. Nothing that
arrives can end the loop: what is bad is dropped and counted, a defect in handling one message is logged with its traceback.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from taskd.core import commands as c
from taskd.core import coordinator
from taskd.core import events as e
from taskd.core.coordinator import Coordinator
from taskd.core.overview import overview
from taskd.manager import peers
from taskd.manager.charge import Charge
from taskd.manager.device_codes import DeviceCodes
from taskd.manager.device_watch import DeviceWatch
from taskd.manager.endpoint import allow_files, listen
from taskd.manager.journal import Journal
from taskd.manager.lookout import Lookout
from taskd.manager.peers import Dropped, Drops, Peer
from taskd.protocol import messages as m
from taskd.protocol.gate import Gate, speaker
from taskd.protocol.keys import Keys
from taskd.protocol.link import Link

OF_OPERATORS = coordinator.OF_OPERATORS | m.Inject | m.CodeTold | m.ReleaseDevice | m.StatusAsked
ON_PURPOSE = m.Inject | m.CodeTold | e.NodeSubHealthy  # what breaks a job that is well; the others only hold it up
NOT_ON_PURPOSE = (
    "this job takes no faults on purpose, and nobody's word that a device or a node is at fault: start it with TASKD_FAULT_INJECTION=on in "
    "the environment of its manager and its launchers"
)
REQUESTS = 1000  # of operators, that wait for an answer
MAX_ROOM = 4096  # ranks on a node, as many as a state page has slots
BATCH = 1000  # messages per turn: timers and new connections get their turn in a flood
# plain ints: arithmetic on pyzmq's enums costs microseconds per message
_NOBLOCK = int(zmq.NOBLOCK)
_ROUTE = _NOBLOCK | int(zmq.SNDMORE)
TO_ALL = (
    c.Pause, c.Rebuild, c.Restore, c.Resume, c.Release, c.RollCall, c.AskSteps, c.Hold, c.Continue, c.GiveUp, c.RestartAll, c.End,
    c.SaveRecords,
)  # fmt: skip
TO_OWNER = (c.Replace, c.Kill, c.SaveState, c.KeepRecords, c.Seal)

log = logging.getLogger("taskd.manager")


@dataclass(frozen=True)
class Limits:
    """In seconds."""

    silence: float = 10.0  # an agent says something each 3 s; a connection that is cut is noticed long before, by protocol.pings
    probe: float = 0.25  # an agent whose connection has ended and whose machine does not answer; a healthy one does in a round trip
    look: float = 1.0  # how often silence is looked for
    first_warning: float = 30.0  # torchrun needs a few seconds to import torch and start its agent
    next_warning: float = 300.0
    flush: float = 1.0  # the last command to 10,000 agents needs ~0.2 s to leave (measured); a dead peer must not hold it up
    stall: float = 1.0  # when this loop was stopped for longer, silence in that time is nobody's fault


@dataclass(frozen=True)
class Outcome:
    """`ok` is None when the manager was asked to leave while the job went on."""

    ok: bool | None
    reason: str


@dataclass
class _Parked:
    """A registration of a node whose agent seems to be alive: decided when that agent speaks, or is gone."""

    route: bytes
    envelope: m.Envelope
    event: e.AgentJoined


@dataclass
class Server:
    """`open()`, then `run()` once; `stop()` may be called from a signal handler or another thread."""

    settings: e.Settings
    job: str
    keys: Keys
    host: str
    port: int
    journal: Journal
    limits: Limits = field(default_factory=Limits)
    successor: bool = False  # another manager was in charge of this job before
    starter: int = -1  # pidfd of the launcher that has started this manager; -1: none has, or it has ended
    codes: DeviceCodes = field(default_factory=DeviceCodes)
    faults_on_purpose: bool = False  # TASKD_FAULT_INJECTION: operators may make, or tell of, faults
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self.coordinator = Coordinator(self.settings)
        self.agents: dict[int, Peer] = {}
        self.standbys: dict[str, Peer] = {}  # by the name of their process
        self.former: dict[str, Peer] = {}  # agents whose node moves to a standby, by the name of the process
        self.fenced: dict[str, c.Fence] = {}  # by the name of the process
        self._lookout = Lookout(self.limits.probe)
        self._others: dict[tuple[str, int], Link] = {}  # to places where another manager may be
        self.drops = Drops()
        self.outcome: Outcome | None = None
        self._parked: dict[int, _Parked] = {}
        self._operators: dict[str, bytes] = {}  # request -> way back to the operator who made it
        self._asked: dict[bytes, float] = {}  # when a stranger was last asked who it is
        self._identity = self.keys.identity()  # as a client of other managers
        self._incarnation = self._identity.name
        shape = (self.settings.nodes, self.settings.ranks_per_node)
        self.charge = Charge(self._incarnation, self.successor, shape, self.port, self._to_agents)
        self._ways: dict[str, tuple[bytes, int]] = {}  # agent -> its route, and the descriptor of its connection
        self._seq = 0
        self._seen: set[int] = set()
        self._overheard: set[str] = set()  # agents of which something was dropped while this manager was not in charge
        self._tick_floor = 0.0
        self._stopped = ""
        self._devices = DeviceWatch(self.codes, self.agents, self.coordinator.job, self._feed)
        self._wake, self._waker = socket.socketpair()
        self._wake.setblocking(False)
        self._waker.setblocking(False)

    # -- life ------------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Listen. Raises PortInUse and BadSetting."""
        allow_files(2 * self.settings.nodes + 200)
        self._context: zmq.Context[Any] = zmq.Context(io_threads=1 if self.settings.nodes <= 1000 else 2)
        try:
            self._gate = Gate(self._context, self.keys, self._refused_key)
            self._router = listen(self._context, self.host, self.port, self.keys, self.settings.nodes)
            self._monitor = self._router.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        except BaseException:
            self._context.destroy(linger=0)
            raise
        self.codes.open(self.clock())
        self._poller = zmq.Poller()
        for source in (self._router, self._gate.socket, self._monitor, self._wake.fileno()):
            self._poller.register(source, zmq.POLLIN)
        if self.codes.descriptor >= 0:
            self._poller.register(self.codes.descriptor, zmq.POLLIN)
        if self.starter >= 0:
            self._poller.register(self.starter, zmq.POLLIN)
        log.info(
            "manager of job %s: %d nodes x %d ranks, listening on %s:%d, ladder: %s",
            self.job, self.settings.nodes, self.settings.ranks_per_node, self.host, self.port, ", ".join(self.settings.ladder),
        )  # fmt: skip

    def run(self) -> Outcome:
        """Serve until the job is over or `stop()` is called."""
        now = self.clock()
        self._next_look, self._next_warning = now + self.limits.look, now + self.limits.first_warning
        try:
            while self.outcome is None:
                now = self._turn(now)
        finally:
            self._lookout.close()
            self.codes.close()
            for link in self._others.values():
                link.close()
            self._router.disable_monitor()
            # agents must still get the last command (why the job ends), so the sockets may linger for a moment
            self._context.destroy(linger=int(self.limits.flush * 1000))
            self._wake.close()
            self._waker.close()
        log.info("manager leaves: %s", self.outcome.reason)
        return self.outcome

    def stop(self, reason: str) -> None:
        """Leave the loop; the job goes on, and its agents wait for another manager."""
        self._stopped = reason
        with contextlib.suppress(OSError):  # has left already, or was told so often that the pipe is full
            self._waker.send(b"x")

    # -- one turn ----------------------------------------------------------------------------------------------------------

    def _turn(self, before: float) -> float:
        start = self.clock()
        due = self._due()
        timeout = max(0.0, due - start)
        ready = self._poll(timeout)
        now = self.clock()
        late = max(start - before, now - start - timeout)
        if late > self.limits.stall:
            log.warning("the manager was stopped for %.1f s; silence in that time does not count", late)
            for peer in self._peers:
                peer.heard += late
            self._tick_floor = now + self.limits.stall  # what was sent meanwhile is heard before deadlines are judged
        if self._gate.socket in ready:
            self._gate.answer()
        if self._wake.fileno() in ready:
            self.outcome = Outcome(None, self._stopped)
            return now
        emptied = self._drain(now)
        if self.starter in ready:
            self._starter_ended(now)
        if self._monitor in ready:
            self._connections(now)
        if found := self._lookout.look(now):
            self._gone({str(who): why for who, why in found}, now)
        if self.outcome is None:
            self._safely(self._look_at_devices, now, self.codes.descriptor in ready)
        if self.outcome is None:
            self._govern(now)
        if self.outcome is None and now >= due:  # a deadline that a message has just set is seen in the next turn
            self._timers(now, emptied)
        return now

    def _starter_ended(self, now: float) -> None:
        """Before any agent has come there is no job; later its agent is gone too, and in a job of one node nobody else is there."""
        self._poller.unregister(self.starter)
        os.close(self.starter)
        self.starter = -1
        if self.outcome is None and not self._peers:
            self.outcome = Outcome(None, "the launcher that has started this manager has ended, and no agent has come")
        elif self.settings.nodes == 1:
            for peer in list(self.agents.values()):
                self._lose(peer, "its launcher has ended", now)

    def _poll(self, timeout: float) -> dict[Any, int]:
        probes = self._lookout.wanted
        for line, writing in probes:
            self._poller.register(line, zmq.POLLOUT if writing else zmq.POLLIN)
        try:
            return dict(self._poller.poll(math.ceil(timeout * 1000)))
        finally:
            for line, _ in probes:
                self._poller.unregister(line)

    @property
    def _peers(self) -> list[Peer]:
        """All agents that are part of the job."""
        return [*self.agents.values(), *self.standbys.values(), *self.former.values()]

    def _connections(self, now: float) -> None:
        """Connections have ended: whoever's it was has gone, or will be back."""
        lines = set()
        while self._monitor.poll(0):
            lines.add(recv_monitor_message(self._monitor)["value"])
        for agent in [a for a, (_, way) in self._ways.items() if way in lines]:
            del self._ways[agent]
            self.charge.left(agent)
        gone: dict[str, str] = {}
        for peer in self._peers:
            if peer.line in lines:
                peer.line = -1
                if peer.records[1] and (why := self._lookout.ask(peer.incarnation, peer.records, now)):
                    gone[peer.incarnation] = why
        if gone:
            self._gone(gone, now)

    def _gone(self, found: dict[str, str], now: float) -> None:
        """The lookout has found out that agents are gone, and why."""
        for peer in self._peers:
            if peer.line < 0 and (why := found.get(peer.incarnation)) is not None:
                self._lose(peer, why, now)

    def _due(self) -> float:
        deadline = self.coordinator.deadline()
        due = min(self._next_look, self._next_warning, self._lookout.due or math.inf, self.codes.due or math.inf)
        # the floor: were a deadline to stay in the past after its Tick, the loop would spin
        return due if deadline is None else min(due, max(deadline, self._tick_floor))

    def _drain(self, now: float) -> bool:
        """Take up to BATCH messages; True when none is left."""
        receive = self._router.recv
        for _ in range(BATCH):
            try:
                self._line = receive(_NOBLOCK, copy=False)
            except zmq.Again:  # once per turn: cheaper than to ask before each message whether there is one
                return True
            frames, more = [self._line.bytes], self._line.more
            while more:
                frame = receive(_NOBLOCK, copy=False)
                frames.append(frame.bytes)
                more = frame.more
            try:
                self._take(frames, now)
            except Dropped as reason:
                self.drops.add(reason.kind, str(reason), now)
            except m.BadMessage as reason:
                self.drops.add("not a message", str(reason), now)
            except Exception:
                log.exception("a message of %d bytes could not be handled; it is dropped", sum(map(len, frames)))
                self.drops.total["defect"] += 1
            if self.outcome is not None:
                return False
        return False

    def _timers(self, now: float, emptied: bool) -> None:
        due = self.coordinator.deadline()
        # an answer that a deadline waits for may still be in the queue; a flood must not hold the deadline up for ever
        if due is not None and now >= max(due, self._tick_floor) and (emptied or now - due > self.limits.stall):
            self._tick_floor = now + (0.05 if self._safely(self._feed, e.Tick(), now) else 5.0)
        if now >= self._next_look:
            self._next_look = now + self.limits.look
            for peer in self._peers if emptied else ():
                if now - peer.heard > self.limits.silence:
                    self._safely(self._lose, peer, f"nothing was heard of its agent for {self.limits.silence:g} s", now)
                elif len(peer.outbox.kept) > peers.UNHEARD:
                    self._safely(self._lose, peer, f"its agent has left {len(peer.outbox.kept)} orders unacknowledged", now)
            for node in list(self._parked):
                self._safely(self._settle, node, now)
            self._safely(self._doubt)
        if now >= self._next_warning:
            self._next_warning = now + self.limits.next_warning
            if len(self._seen) < self.settings.nodes:
                log.warning(
                    "expected %d nodes, seen %d: start torchrun with TASKD_PROCESS_ENABLE=on on every node, "
                    "where %s:%d can be reached (TASKD_MANAGER_ADDR) and MINDX_TASK_ID is %s",
                    self.settings.nodes, len(self._seen), self.host, self.port, self.job,
                )  # fmt: skip

    # -- messages in -------------------------------------------------------------------------------------------------------

    def _take(self, frames: list[bytes], now: float) -> None:
        if len(frames) != 2:
            raise Dropped("frames", f"a message of {len(frames) - 1} frames, one is expected")
        route, data = frames
        envelope = peers.unseal(data)
        peers.check_speaker(envelope, speaker(self._line))
        peers.check_envelope(envelope, self.job)
        if (fence := self.fenced.get(envelope.incarnation)) is not None:
            self._turn_away(route, fence, now)
            raise Dropped("fenced", f"agent {envelope.incarnation[:8]}: {fence.reason}")
        message = peers.decode(envelope.body)
        if envelope.sender == m.OPERATOR:
            self._operate(route, message, now)
            return
        if isinstance(message, m.Standing | m.Vote | m.RosterKept):
            self._about_charge(route, envelope, message, now)
            return
        if isinstance(message, m.Heard | m.Heartbeat) and (known := self._known(envelope)) is not None:
            self._hear(known, envelope, route, now)
            if isinstance(message, m.Heard):
                self._heard(known, message.number)
            elif message.unheard or known.outbox.kept:
                self._send_now(known, m.Heard(known.inbox.number))
            return
        if not self.charge.in_charge:
            self._overheard.add(envelope.incarnation)  # it is asked for this again when we are
            raise Dropped("not in charge", f"node {envelope.sender}: {type(message).__name__}; a majority has to acknowledge this manager")
        if envelope.sender == m.STANDBY:
            self._stand_by(route, envelope, message, now)
            return
        if isinstance(message, e.NodeTaken):
            self._node_taken(route, envelope, message, now)
            return
        if (former := self.former.get(envelope.incarnation)) is not None:
            self._hear(former, envelope, route, now)
            if isinstance(message, m.May):
                self._permit(former, message)
            if isinstance(message, e.AgentLeft):
                self._lose(former, f"its launcher has left{': ' + message.why if message.why else ''}", now)
            return  # it tells all again if it gets its node back
        peer = self.agents.get(envelope.sender)
        if peer is not None and peer.incarnation == envelope.incarnation:
            self._hear(peer, envelope, route, now)
            if self.agents.get(peer.node) is not peer:
                return  # that were its last words: another agent has the node by now
            if isinstance(message, e.AgentJoined):
                self._register(route, envelope, message, now)
            elif isinstance(message, m.May):
                self._permit(peer, message)
            else:
                peers.check_event(message, peer)
                if isinstance(message, m.Injected):
                    self._answer(c.Answer(message.request, message.ok, message.text))
                    return
                self._feed(message, now)
                if isinstance(message, e.AgentLeft) and not message.ok:  # one that has ended well waits for the others
                    self.agents.pop(peer.node, None)
        elif isinstance(message, e.AgentJoined):
            self._register(route, envelope, message, now)
        else:
            self._ask(route, now)

    def _hear(self, peer: Peer, envelope: m.Envelope, route: bytes, now: float) -> None:
        """Note that the agent has spoken. Raises Dropped for what is not news, or comes before its turn."""
        if envelope.seq <= peer.seq:
            raise Dropped("late", f"node {peer.node}: message {envelope.seq} after {peer.seq}")
        moved, peer.route = route != peer.route, route
        if moved or peer.line < 0:
            peer.line = self._descriptor()
            self._lookout.forget(peer.incarnation)
        peer.seq, peer.heard = envelope.seq, now
        if moved:
            # what was under way on the old connection may be lost: each end says how far it has heard
            peer.outbox.in_step = False
            self._send_now(peer, m.Heard(peer.inbox.number))
        if peer.node in self._parked:
            self._settle(peer.node, now, spoke=True)
        if envelope.number and not peer.inbox.take(envelope.number):
            if envelope.number > peer.inbox.number:
                self._ask_again(peer)
            raise Dropped("said again", f"node {peer.node}: number {envelope.number} after {peer.inbox.number}")

    def _ask_again(self, peer: Peer) -> None:
        """What the agent has said after the last that we have heard is lost: told so twice, it says it again (core.delivery)."""
        for _ in range(2):
            self._send_now(peer, m.Heard(peer.inbox.number))

    def _heard(self, peer: Peer, number: int) -> None:
        """The agent has everything up to order `number`."""
        for _, data in peer.outbox.heard(number):
            if not self._put(peer.route, data):
                peer.outbox.in_step = False
                break

    def _known(self, envelope: m.Envelope) -> Peer | None:
        """The agent that speaks."""
        peer = self.agents.get(envelope.sender)
        if peer is not None and peer.incarnation == envelope.incarnation:
            return peer
        return self.standbys.get(envelope.incarnation) or self.former.get(envelope.incarnation)

    def _register(self, route: bytes, envelope: m.Envelope, event: e.AgentJoined, now: float) -> None:
        try:
            peers.check_agent(event.agent, envelope)
            peers.check_registration(event, envelope.sender, self.settings.nodes)
        except Dropped as reason:
            self._reply(route, m.Refused(str(reason)))
            raise
        if envelope.incarnation in self.coordinator.job.topology.stood_down:
            self._reply(route, c.StandDown(envelope.incarnation, event.node, "the node stays where it is"))
            return
        peer = self.agents.get(event.node)
        other = peer is not None and peer.incarnation != envelope.incarnation
        if self.charge.stranger(envelope.incarnation) or (other and self.coordinator.job.protected):
            why = f"node {event.node} has another agent: this one was replaced, or has the --node_rank of another node"
            self._fence(c.Fence(envelope.incarnation, event.node, why))
            self._turn_away(route, self.fenced[envelope.incarnation], now)
            if peer is not None and not self._put(peer.route, self._seal(m.Who())):
                self._lose(peer, "its agent is gone and another one has registered for the node", now)
            return
        if other:
            self._parked[event.node] = _Parked(route, envelope, event)
            self._settle(event.node, now)
            return
        before = self.coordinator.job.topology.nodes.get(event.node)
        commands = self.coordinator.step(event, now)
        entry = self.coordinator.job.topology.nodes.get(event.node)
        if any(isinstance(command, c.Fence) and command.agent == envelope.incarnation for command in commands):
            self._carry_out(commands, now)
            self._turn_away(route, self.fenced[envelope.incarnation], now)
            return
        if entry is None or (entry.ranks, entry.store, entry.epoch) != (event.ranks, event.store, event.epoch):
            why_not = next((command.text for command in commands if isinstance(command, c.Note)), "the job is over")
            log.warning("node %d is refused: %s", event.node, why_not)
            self._reply(route, m.Refused(why_not))
            return
        if peer is None:
            log.info("node %d joined with ranks %s, epoch %d", event.node, list(event.ranks), event.epoch)
            peer = self.agents[event.node] = Peer(event.node, envelope.incarnation, route, event.ranks, envelope.seq, now)
            peer.line, peer.inbox.number = self._descriptor(), abs(envelope.number)
        peer.ranks, peer.records = event.ranks, event.records
        self._asked.pop(route, None)
        self._seen.add(event.node)
        self._carry_out(commands, now)
        self._devices.stands(peer, now)
        # what a reconnected agent tells may be news (the event was lost with the connection); else it changes nothing
        incarnations = dict(zip(event.ranks, event.incarnations or (0,) * len(event.ranks), strict=True))
        if event.generation == 0:
            for rank in event.joined:
                self._feed(e.RankJoined(rank, incarnations[rank]), now)
        if before is not None and before.epoch == event.epoch:
            for rank, left in zip(event.dead, event.left or (None,) * len(event.dead), strict=False):
                self._feed(e.RankDied(rank, incarnations[rank], "died while its agent was out of reach", left), now)

    def _settle(self, node: int, now: float, spoke: bool = False) -> None:
        """Decide on a second agent of a node: refused when the first speaks and can be reached, admitted when it is gone."""
        parked, peer = self._parked[node], self.agents.get(node)
        if peer is None:
            del self._parked[node]
            self._register(parked.route, parked.envelope, parked.event, now)
        elif not self._put(peer.route, self._seal(m.Who())):  # answered by registering again, which changes nothing
            self._lose(peer, "its agent is gone and another one has registered for the node", now)
            if self.outcome is None:
                self._settle(node, now)
        elif spoke:
            del self._parked[node]
            reason = f"node {node} has a living agent already: give each node another --node_rank, or end the other one"
            log.warning("a second agent was refused: %s", reason)
            self._reply(parked.route, m.Refused(reason))

    def _stand_by(self, route: bytes, envelope: m.Envelope, message: Any, now: float) -> None:
        """What an agent without a node says."""
        if isinstance(message, m.Arrived):
            peer = self.agents.get(message.node)
            taken = (peer is not None and peer.line >= 0) or (message.node == 0 and self.starter >= 0)
            self._reply(route, m.UnderWay(self.coordinator.job.protected, taken))
            return
        peer = self.standbys.get(envelope.incarnation)
        if peer is not None:
            self._hear(peer, envelope, route, now)
        if isinstance(message, e.StandbyJoined):
            peers.check_agent(message.agent, envelope)
            if not 1 <= message.ranks <= MAX_ROOM or not 0 <= message.records[1] <= 65535:
                raise Dropped("registration", f"a standby for {message.ranks} ranks")
            if peer is None:
                log.info("standby %s has registered, for up to %d ranks", message.agent[:8], message.ranks)
                peer = self.standbys[message.agent] = Peer(m.STANDBY, message.agent, route, (), envelope.seq, now)
                peer.line, peer.inbox.number = self._descriptor(), abs(envelope.number)
            peer.records, peer.ranks = message.records, (0,) * message.ranks
            self._asked.pop(route, None)
            self.charge.chair.want(message.agent, True)
            self._admit(peer, now)
        elif peer is None:
            self._ask(route, now)
        elif isinstance(message, e.NodePrepared | e.PreparationFailed):
            peers.check_agent(message.agent, envelope)
            self._feed(message, now)
        elif not isinstance(message, m.Heartbeat):
            raise Dropped("direction", f"a standby sent {type(message).__name__}")

    def _node_taken(self, route: bytes, envelope: m.Envelope, event: e.NodeTaken, now: float) -> None:
        """A standby is a node from here on."""
        peers.check_agent(event.agent, envelope)
        standby = self.standbys.get(event.agent)
        node = self.coordinator.job.topology.nodes.get(event.node)
        if standby is None or node is None or envelope.sender != event.node:
            raise Dropped("registration", f"agent {event.agent[:8]} has taken node {event.node}, and is no standby")
        self._hear(standby, envelope, route, now)
        commands = self.coordinator.step(event, now)
        if self.coordinator.job.topology.nodes[event.node].agent == event.agent:
            del self.standbys[event.agent]
            standby.node, standby.ranks, standby.records = event.node, node.ranks, event.records
            self.agents[event.node] = standby
        self._carry_out(commands, now)
        if self.agents.get(event.node) is standby:
            self._devices.stands(standby, now)

    def _look_at_devices(self, now: float, changed: bool) -> None:
        if self._devices.look(now, changed):
            self._admit_all(now)

    def _admit_all(self, now: float) -> None:
        for standby in list(self.standbys.values()):
            self._admit(standby, now)

    def _admit(self, standby: Peer, now: float) -> None:
        """A standby may take a node over once it is one of those that vote: see core.terms."""
        chair = self.charge.chair
        if why := self._devices.against(standby, now):
            log.warning("standby %s is not used: %s", standby.incarnation[:8], why)
        elif chair.fresh or chair.member(standby.incarnation):
            self._feed(e.StandbyJoined(standby.incarnation, len(standby.ranks), standby.records), now)

    # -- who is in charge ------------------------------------------------------------------------------------------------------

    def _about_charge(self, route: bytes, envelope: m.Envelope, message: Any, now: float) -> None:
        agent = envelope.incarnation
        peer = self._known(envelope)
        if peer is not None:
            self._hear(peer, envelope, route, now)
        self._ways[agent] = (route, self._descriptor())
        if isinstance(message, m.Standing):
            self.charge.stands(agent, message)
        elif isinstance(message, m.Vote):
            if self.charge.voted(agent, message):
                self._to_agents(self._ways, m.Who())
            elif self.charge.in_charge and peer is None:  # late
                self._to_agents([agent], m.Who())
        else:
            self.charge.kept(agent, message)
            self._admit_all(now)

    def _to_agents(self, agents: Iterable[str], message: Any) -> None:
        data = self._seal(message)
        for agent in agents:
            if (way := self._ways.get(agent)) is not None:
                self._put(way[0], data)  # when it is gone, it will say where it stands when it is back

    def _govern(self, now: float) -> None:
        """The roster follows what has happened; a manager that another one has taken the place of leaves."""
        if self.charge.chair.deposed:
            self.outcome = Outcome(None, f"another manager is in charge; this one was in term {self.charge.chair.term}")
            return
        if self._overheard and self.charge.in_charge:
            for peer in [p for p in self._peers if p.incarnation in self._overheard]:
                self._ask_again(peer)
            self._overheard.clear()
        if self.coordinator.job.protected:  # all that are to be heard are heard: the next roster says where they are
            self.charge.tend(self._everybody, self.coordinator.job.topology.unaccounted)

    def _doubt(self) -> None:
        """While few agents are connected: ask in all places where another manager may be whether one is in charge of the others. Who was
        stopped, or cut off with its own agent, hears of it in no other way."""
        if not self.charge.doubts(set(self._ways)):
            for link in self._others.values():
                link.close()
            self._others.clear()
            return
        for address in self.charge.places:
            if address not in self._others and address[0] != self.host:
                self._others[address] = Link(address, self.keys, self.job, m.STANDBY, self._identity, refusal=False)
        for link in self._others.values():
            while link.receive() is not None:
                self.charge.told(link.term)
            link.read_monitor()
            if link.connected:
                link.send(self.charge.standing())

    def _everybody(self) -> list[tuple[str, str, int]]:
        """Names, machines and nodes of all agents, those first on whose machine a manager is started first: ours, then by node."""
        peers = [*(p for _, p in sorted(self.agents.items())), *self.former.values(), *self.standbys.values()]
        return sorted(((p.incarnation, p.records[0], p.node) for p in peers), key=lambda known: known[1] != self.host)

    def _descriptor(self) -> int:
        """Of the connection that the message at hand has come by."""
        return int(self._line.get(zmq.SRCFD))

    def _turn_away(self, route: bytes, fence: c.Fence, now: float) -> None:
        """A fenced agent is told so; once a second, however much it says."""
        if now - self._asked.get(route, float("-inf")) >= 1.0:
            self._asked[route] = now
            self._reply(route, fence)

    def _ask(self, route: bytes, now: float) -> None:
        """A stranger is asked who it is; once a second, however much it has in the queue."""
        if now - self._asked.get(route, float("-inf")) >= 1.0:
            if len(self._asked) > 2 * self.settings.nodes + 100:
                self._asked.clear()
            self._asked[route] = now
            self._reply(route, m.Who())

    def _refused_key(self, address: str) -> None:
        self.drops.add("no key", f"{address} does not speak CURVE as agents do", self.clock())

    def _permit(self, peer: Peer, question: m.May) -> None:
        """An agent asks whether another one's records are its business: see core.topology."""
        topology = self.coordinator.job.topology
        asked = topology.may_fetch if question.fetch else topology.may_keep
        node, each = topology.nodes.get(question.node), self.settings.ranks_per_node
        granted = asked(peer.node, question.node, question.agent)
        if question.fetch and self.charge.chair.term > 1 and question.agent in self.charge.chair.roster.members:
            granted = granted or topology.had_been_given(question.node, question.agent)
        ranks = tuple(range(question.node * each, question.node * each + each)) if granted else ()
        self._send(peer, m.Permit(question.node, question.agent, question.fetch, granted, node.ranks if granted and node else ranks))

    # -- operators -----------------------------------------------------------------------------------------------------------

    def _operate(self, route: bytes, message: Any, now: float) -> None:
        """A request of an operator, who has the job's key. Each is answered once."""
        if not isinstance(message, OF_OPERATORS):
            raise Dropped("direction", f"an operator sent {type(message).__name__}, which is no request")
        if len(self._operators) >= REQUESTS:
            self._operators.pop(next(iter(self._operators)))  # the oldest: its operator has long given up
        self._operators[message.request] = route
        if isinstance(message, ON_PURPOSE) and not self.faults_on_purpose:
            log.warning("%s is refused: TASKD_FAULT_INJECTION is not on", type(message).__name__)
            self._answer(c.Answer(message.request, False, NOT_ON_PURPOSE))
            return
        if isinstance(message, m.StatusAsked):
            self._answer(c.Answer(message.request, True, overview(self.coordinator)))
            return
        if isinstance(message, m.ReleaseDevice):
            refusal = self.codes.release(message.device, now)
            self._answer(c.Answer(message.request, not refusal, refusal or f"{message.device[:100]!r} may be used again"))
            self._devices.stand(now)
            self._admit_all(now)
            return
        if not isinstance(message, m.Inject | m.CodeTold):
            self._feed(message, now)
            return
        log.warning("%s: %.300s", "a fault on purpose" if isinstance(message, m.Inject) else "told of a fault code", message)
        node = self.coordinator.job.topology.node_of(message.rank)
        owner = None if node is None else self.agents.get(node)
        if owner is None:
            self._answer(c.Answer(message.request, False, f"rank {message.rank} is on no node that has joined"))
        elif isinstance(message, m.CodeTold):
            if refusal := self._devices.told(message, owner, now):
                self._answer(c.Answer(message.request, False, refusal))
        else:
            self._send(owner, message)

    def _answer(self, answer: c.Answer) -> None:
        route = self._operators.pop(answer.request, None)
        if route is not None:
            self._reply(route, answer)

    # -- the coordinator -----------------------------------------------------------------------------------------------------

    def _lose(self, peer: Peer, why: str, now: float) -> None:
        self._lookout.forget(peer.incarnation)
        if self.former.pop(peer.incarnation, None) is not None:
            self._feed(e.FormerLost(peer.node, peer.incarnation, why), now)
            return
        if peer.node == m.STANDBY:
            log.warning("standby %s is lost: %s", peer.incarnation[:8], why)
            self.standbys.pop(peer.incarnation, None)
            self.charge.chair.want(peer.incarnation, False)
            self._feed(e.StandbyLost(peer.incarnation, why), now)
            return
        log.warning("node %d is lost: %s", peer.node, why)
        self.agents.pop(peer.node, None)
        self._feed(e.AgentLost(peer.node, why), now)

    def _safely(self, action: Callable[..., None], *args: Any) -> bool:
        """For what no message asks for: a defect is logged, and the loop goes on."""
        try:
            action(*args)
        except Exception:
            log.exception("%s%s failed", action.__name__.lstrip("_"), args)
            self.drops.total["defect"] += 1
            return False
        return True

    def _feed(self, event: e.Event, now: float) -> None:
        self._carry_out(self.coordinator.step(event, now), now)

    def _carry_out(self, commands: list[c.Command], now: float) -> None:
        for command in commands:
            if isinstance(command, TO_ALL):
                log.info("to all: %.500s", command)  # a plan for 10,000 ranks is long
                data = self._seal(command, numbered=True)
                for peer in self.agents.values():
                    self._deliver(peer, data)
                for peer in (*self.standbys.values(), *self.former.values()) if isinstance(command, c.End) else ():
                    self._deliver(peer, data)
                if isinstance(command, c.End):
                    self._end(command)
            elif isinstance(command, TO_OWNER):
                log.info("%s", command)
                topology = self.coordinator.job.topology
                node = command.node if isinstance(command, c.KeepRecords | c.Seal) else topology.node_of(command.rank)
                owner = None if node is None else self.agents.get(node)
                if owner is None:
                    log.warning("%s reaches nobody: its node has no agent", command)
                else:
                    self._send(owner, command)
            elif isinstance(command, c.TakeOver):
                log.info("%s", command)
                if (former := self.agents.get(command.node)) is not None and former.incarnation == command.former:
                    self.former[former.incarnation] = self.agents.pop(command.node)
                before = self.charge.holder(command.node) if not command.former else ""
                if before and before != command.agent and before not in self.fenced:  # lost with the manager before this one
                    self._fence(c.Fence(before, command.node, command.reason))
                self._send_standby(command)
            elif isinstance(command, c.Prepare):
                log.info("%s", command)
                self._send_standby(command)
            elif isinstance(command, c.StandDown):
                self._stand_down(command)
            elif isinstance(command, c.Fence):
                self._fence(command)
            elif isinstance(command, c.Answer):
                self._answer(command)
            elif isinstance(command, c.Note):
                log.info("%s", command.text)
            elif isinstance(command, c.Closed):
                log.info("%s", command)
                self.journal.closed(command, now)

    def _end(self, command: c.End) -> None:
        (log.info if command.ok else log.error)("the job is over: %s", command.reason)
        self.journal.end(command.ok, command.reason)
        self.outcome = Outcome(command.ok, command.reason)
        for request in list(self._operators):
            self._answer(c.Answer(request, False, f"the job is over: {command.reason}"))

    def _fence(self, command: c.Fence) -> None:
        """From here on nothing that this process says is heard."""
        log.warning("agent %s is fenced: %s", command.agent[:8], command.reason)
        self.fenced[command.agent] = command
        self.charge.chair.want(command.agent, False)
        peer = self.agents.get(command.node)
        if peer is not None and peer.incarnation == command.agent:
            self._send(peer, command)
            del self.agents[command.node]
        elif (other := self.standbys.pop(command.agent, None) or self.former.pop(command.agent, None)) is not None:
            self._send(other, command)

    def _send_standby(self, command: c.Prepare | c.TakeOver | c.StandDown) -> None:
        if (standby := self.standbys.get(command.agent)) is not None:
            self._send(standby, command)

    def _stand_down(self, command: c.StandDown) -> None:
        """A standby is not to be the node; if it was already, whoever has had the node has it again."""
        log.warning("%s", command)
        peer = self.agents.get(command.node)
        if peer is not None and peer.incarnation == command.agent:
            del self.agents[command.node]
            peer.node, peer.ranks = m.STANDBY, (0,) * len(peer.ranks)
            self.standbys[command.agent] = peer
        self._send_standby(command)
        for former in [p for p in self.former.values() if p.node == command.node]:
            self.agents[command.node] = self.former.pop(former.incarnation)
            self._send_now(former, m.Who())  # what it has said meanwhile was not heard

    # -- messages out --------------------------------------------------------------------------------------------------------

    def _seal(self, message: Any, numbered: bool = False) -> bytes:
        self._seq += 1
        number = self._seq if numbered else 0
        term = self.charge.chair.term
        return m.seal(m.Envelope(m.VERSION, self.job, -1, self._incarnation, self._seq, m.encode(message), term, number))

    def _send(self, peer: Peer, message: Any) -> None:
        self._deliver(peer, self._seal(message, numbered=True))

    def _send_now(self, peer: Peer, message: Any) -> None:
        """What need not arrive."""
        self._put(peer.route, self._seal(message))

    def _deliver(self, peer: Peer, data: bytes) -> None:
        """What was sealed just now, numbered: kept until the agent has it."""
        if peer.outbox.add(data, self._seq) and not self._put(peer.route, data):
            peer.outbox.in_step = False

    def _reply(self, route: bytes, message: Any) -> None:
        self._put(route, self._seal(message))  # to a stranger: when it is gone, nobody misses the answer

    def _put(self, route: bytes, data: bytes) -> bool:
        try:
            self._router.send(route, _ROUTE)  # refused here, if at all
            self._router.send(data, _NOBLOCK)
        except zmq.ZMQError:  # EHOSTUNREACH: the connection is gone; EAGAIN: it does not read
            return False
        return True

"""The manager's loop: one thread, one poller. Messages and timers in, `Coordinator.step`, commands
out.

Nothing in here blocks but the poll, and the poll sleeps until the next message, deadline or look at
who is silent. Nothing that arrives can end the loop: what is bad is dropped and counted, a defect
in handling one message is logged with its traceback.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from taskd.core import commands as c
from taskd.core import events as e
from taskd.core.coordinator import Coordinator
from taskd.core.settings import Settings
from taskd.manager import peers
from taskd.manager.charge import Charge
from taskd.manager.device_codes import DeviceCodes
from taskd.manager.device_watch import DeviceWatch
from taskd.manager.endpoint import allow_files, listen
from taskd.manager.journal import Journal
from taskd.manager.lookout import Lookout
from taskd.manager.membership import Membership
from taskd.manager.operators import Operators
from taskd.manager.outgoing import Outgoing
from taskd.manager.peers import Dropped, Drops
from taskd.messages import codec, from_agent, from_rank, to_agent, to_operator, to_rank
from taskd.messages.envelope import OPERATOR, STANDBY, Envelope, unseal
from taskd.protocol.gate import Gate, speaker
from taskd.protocol.keys import Keys
from taskd.protocol.link import Link

BATCH = 1000  # messages per turn: timers and new connections get their turn in a flood
# plain ints: arithmetic on pyzmq's enums costs microseconds per message
_NOBLOCK = int(zmq.NOBLOCK)
TO_ALL = (
    to_rank.Pause,
    to_rank.Rebuild,
    to_rank.Restore,
    to_rank.Resume,
    to_rank.Release,
    to_rank.RollCall,
    to_agent.AskSteps,
    to_rank.Hold,
    to_rank.Continue,
    to_agent.GiveUp,
    to_agent.RestartAll,
    to_agent.End,
    to_agent.SaveRecords,
)
TO_OWNER = (to_agent.Replace, to_agent.Kill, to_rank.SaveState, to_agent.KeepRecords, to_agent.Seal)

log = logging.getLogger("taskd.manager")


@dataclass(frozen=True)
class Limits:
    """In seconds."""

    # an agent says something each 3 s; a connection that is cut is noticed long before, by
    # protocol.pings
    silence: float = 10.0
    # an agent whose connection has ended and whose machine does not answer; a healthy one does in a
    # round trip
    probe: float = 0.25
    look: float = 1.0  # how often silence is looked for
    first_warning: float = 30.0  # torchrun needs a few seconds to import torch and start its agent
    next_warning: float = 300.0
    # the last command to 10,000 agents needs ~0.2 s to leave (measured); a dead peer must not hold
    # it up
    flush: float = 1.0
    # when this loop was stopped for longer, silence in that time is nobody's fault
    stall: float = 1.0


@dataclass(frozen=True)
class Outcome:
    """`ok` is None when the manager was asked to leave while the job went on."""

    ok: bool | None
    reason: str


@dataclass
class Server:
    """`open()`, then `run()` once; `stop()` may be called from a signal handler or another
    thread."""

    settings: Settings
    job: str
    keys: Keys
    host: str
    port: int
    journal: Journal
    limits: Limits = field(default_factory=Limits)
    successor: bool = False  # another manager was in charge of this job before
    # pidfd of the launcher that has started this manager; -1: none has, or it has ended
    starter: int = -1
    codes: DeviceCodes = field(default_factory=DeviceCodes)
    faults_on_purpose: bool = False  # TASKD_FAULT_INJECTION: operators may make, or tell of, faults
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self.coordinator = Coordinator(self.settings)
        self.drops = Drops()
        self.outcome: Outcome | None = None
        self._lookout = Lookout(self.limits.probe)
        self._identity = self.keys.identity()  # as a client of other managers
        name, shape = self._identity.name, (self.settings.nodes, self.settings.ranks_per_node)
        self.charge = Charge(name, self.successor, shape, (self.host, self.port))
        self._out = Outgoing(self.job, name, lambda: self.charge.chair.term)
        self.charge.open(
            self._out,
            lambda place: Link(place, self.keys, self.job, STANDBY, self._identity, refusal=False),
        )
        self.members = Membership(
            self.coordinator,
            self.charge,
            self._out,
            self._lookout,
            self.host,
            self._descriptor,
            self._carry_out,
        )
        self._devices = DeviceWatch(
            self.codes, self.members.agents, self.coordinator.job, self._feed
        )
        self.members.watch(self._devices)
        self.operators = Operators(
            self.coordinator,
            self.members,
            self._out,
            self.codes,
            self._devices,
            self._feed,
            self.faults_on_purpose,
        )
        # agents of which something was dropped while this manager was not in charge
        self._overheard: set[str] = set()
        self._tick_floor = 0.0
        self._stopped = ""
        self._wake, self._waker = socket.socketpair()
        self._wake.setblocking(False)
        self._waker.setblocking(False)

    # -- life --------------------------------------------------------------------------------------

    def open(self) -> None:
        """Listen. Raises PortInUse and BadSetting."""
        allow_files(2 * self.settings.nodes + 200)
        self._context: zmq.Context[Any] = zmq.Context(
            io_threads=1 if self.settings.nodes <= 1000 else 2
        )
        try:
            self._gate = Gate(self._context, self.keys, self._refused_key)
            self._out.router = listen(
                self._context, self.host, self.port, self.keys, self.settings.nodes
            )
            self._monitor = self._out.router.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        except BaseException:
            self._context.destroy(linger=0)
            raise
        self.codes.open(self.clock())
        self._poller = zmq.Poller()
        for source in (self._out.router, self._gate.socket, self._monitor, self._wake.fileno()):
            self._poller.register(source, zmq.POLLIN)
        if self.codes.descriptor >= 0:
            self._poller.register(self.codes.descriptor, zmq.POLLIN)
        if self.starter >= 0:
            self._poller.register(self.starter, zmq.POLLIN)
        log.info(
            "manager of job %s: %d nodes x %d ranks, listening on %s:%d, ladder: %s",
            self.job,
            self.settings.nodes,
            self.settings.ranks_per_node,
            self.host,
            self.port,
            ", ".join(self.settings.ladder),
        )

    def run(self) -> Outcome:
        """Serve until the job is over or `stop()` is called."""
        now = self.clock()
        self._next_look, self._next_warning = (
            now + self.limits.look,
            now + self.limits.first_warning,
        )
        try:
            while self.outcome is None:
                now = self._turn(now)
        finally:
            self._lookout.close()
            self.codes.close()
            self.charge.close()
            self._out.router.disable_monitor()
            # agents must still get the last command (why the job ends), so the sockets may linger
            # for a moment
            self._context.destroy(linger=int(self.limits.flush * 1000))
            self._wake.close()
            self._waker.close()
        log.info("manager leaves: %s", self.outcome.reason)
        return self.outcome

    def stop(self, reason: str) -> None:
        """Leave the loop; the job goes on, and its agents wait for another manager."""
        self._stopped = reason
        # has left already, or was told so often that the pipe is full
        with contextlib.suppress(OSError):
            self._waker.send(b"x")

    # -- one turn ----------------------------------------------------------------------------------

    def _turn(self, before: float) -> float:
        start = self.clock()
        due = self._due()
        timeout = max(0.0, due - start)
        ready = self._poll(timeout)
        now = self.clock()
        late = max(start - before, now - start - timeout)
        if late > self.limits.stall:
            log.warning(
                "the manager was stopped for %.1f s; silence in that time does not count", late
            )
            for peer in self.members.peers:
                peer.heard += late
            # what was sent meanwhile is heard before deadlines are judged
            self._tick_floor = now + self.limits.stall
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
        # a deadline that a message has just set is seen in the next turn
        if self.outcome is None and now >= due:
            self._timers(now, emptied)
        return now

    def _starter_ended(self, now: float) -> None:
        """Before any agent has come there is no job; later its agent is gone too, and in a job of
        one node nobody else is there."""
        self._poller.unregister(self.starter)
        os.close(self.starter)
        self.starter = -1
        if self.outcome is None and not self.members.peers:
            self.outcome = Outcome(
                None, "the launcher that has started this manager has ended, and no agent has come"
            )
        elif self.settings.nodes == 1:
            for peer in list(self.members.agents.values()):
                self.members.lose(peer, "its launcher has ended", now)

    def _poll(self, timeout: float) -> dict[Any, int]:
        probes = self._lookout.wanted
        for line, writing in probes:
            self._poller.register(line, zmq.POLLOUT if writing else zmq.POLLIN)
        try:
            return dict(self._poller.poll(math.ceil(timeout * 1000)))
        finally:
            for line, _ in probes:
                self._poller.unregister(line)

    def _connections(self, now: float) -> None:
        """Connections have ended: whoever's it was has gone, or will be back."""
        lines = set()
        while self._monitor.poll(0):
            lines.add(recv_monitor_message(self._monitor)["value"])
        self.charge.ended(lines)
        gone: dict[str, str] = {}
        for peer in self.members.peers:
            if peer.line in lines:
                peer.line = -1
                if peer.records[1] and (
                    why := self._lookout.ask(peer.incarnation, peer.records, now)
                ):
                    gone[peer.incarnation] = why
        if gone:
            self._gone(gone, now)

    def _gone(self, found: dict[str, str], now: float) -> None:
        """The lookout has found out that agents are gone, and why."""
        for peer in self.members.peers:
            if peer.line < 0 and (why := found.get(peer.incarnation)) is not None:
                self.members.lose(peer, why, now)

    def _due(self) -> float:
        deadline = self.coordinator.deadline()
        due = min(
            self._next_look,
            self._next_warning,
            self._lookout.due or math.inf,
            self.codes.due or math.inf,
        )
        # the floor: were a deadline to stay in the past after its Tick, the loop would spin
        return due if deadline is None else min(due, max(deadline, self._tick_floor))

    def _drain(self, now: float) -> bool:
        """Take up to BATCH messages; True when none is left."""
        receive = self._out.router.recv
        for _ in range(BATCH):
            try:
                self._line = receive(_NOBLOCK, copy=False)
            # once per turn: cheaper than to ask before each message whether there is one
            except zmq.Again:
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
            except codec.BadMessage as reason:
                self.drops.add("not a message", str(reason), now)
            except Exception:
                log.exception(
                    "a message of %d bytes could not be handled; it is dropped",
                    sum(map(len, frames)),
                )
                self.drops.total["defect"] += 1
            if self.outcome is not None:
                return False
        return False

    def _timers(self, now: float, emptied: bool) -> None:
        due = self.coordinator.deadline()
        # an answer that a deadline waits for may still be in the queue; a flood must not hold the
        # deadline up forever
        if (
            due is not None
            and now >= max(due, self._tick_floor)
            and (emptied or now - due > self.limits.stall)
        ):
            self._tick_floor = now + (0.05 if self._safely(self._feed, e.Tick(), now) else 5.0)
        if now >= self._next_look:
            self._next_look = now + self.limits.look
            for peer in self.members.peers if emptied else ():
                if now - peer.heard > self.limits.silence:
                    self._safely(
                        self.members.lose,
                        peer,
                        f"nothing was heard of its agent for {self.limits.silence:g} s",
                        now,
                    )
                elif len(peer.outbox.kept) > peers.UNHEARD:
                    self._safely(
                        self.members.lose,
                        peer,
                        f"its agent has left {len(peer.outbox.kept)} orders unacknowledged",
                        now,
                    )
            for node in list(self.members.parked):
                self._safely(self.members.settle, node, now)
            self._safely(self.charge.doubt)
        if now >= self._next_warning:
            self._next_warning = now + self.limits.next_warning
            if len(self.members.seen) < self.settings.nodes:
                log.warning(
                    "expected %d nodes, seen %d: start torchrun with TASKD_PROCESS_ENABLE=on on"
                    " every node, where %s:%d can be reached (TASKD_MANAGER_ADDR) and MINDX_TASK_ID"
                    " is %s",
                    self.settings.nodes,
                    len(self.members.seen),
                    self.host,
                    self.port,
                    self.job,
                )

    # -- messages in -------------------------------------------------------------------------------

    def _take(self, frames: list[bytes], now: float) -> None:
        if len(frames) != 2:
            raise Dropped("frames", f"a message of {len(frames) - 1} frames, one is expected")
        route, data = frames
        envelope = unseal(data)
        peers.check_speaker(envelope, speaker(self._line))
        peers.check_envelope(envelope, self.job)
        if (fence := self.members.fenced.get(envelope.incarnation)) is not None:
            self.members.turn_away(route, fence, now)
            raise Dropped("fenced", f"agent {envelope.incarnation[:8]}: {fence.reason}")
        message = peers.decode(envelope)
        if envelope.sender == OPERATOR:
            self.operators.request(route, message, now)
            return
        if isinstance(message, from_agent.Standing | from_agent.Vote | from_agent.RosterKept):
            self._about_charge(route, envelope, message, now)
            return
        if (
            isinstance(message, to_agent.Heard | from_agent.Heartbeat)
            and (known := self.members.known(envelope)) is not None
        ):
            self.members.hear(known, envelope, route, now)
            if isinstance(message, to_agent.Heard):
                self.members.heard(known, message.number)
            elif message.unheard or known.outbox.kept:
                self._out.send_now(known, to_agent.Heard(known.inbox.number))
            return
        if not self.charge.in_charge:
            self._overheard.add(envelope.incarnation)  # it is asked for this again when we are
            raise Dropped(
                "not in charge",
                f"node {envelope.sender}: {type(message).__name__}; a majority has to acknowledge"
                " this manager",
            )
        if isinstance(message, from_agent.Arrived) and envelope.sender == STANDBY:
            self._arrived(route, message)
            return
        if envelope.sender == STANDBY:
            self.members.stand_by(route, envelope, message, now)
            return
        if isinstance(message, from_agent.NodeTaken):
            self.members.node_taken(route, envelope, message, now)
            return
        if (former := self.members.former.get(envelope.incarnation)) is not None:
            self.members.hear(former, envelope, route, now)
            if isinstance(message, from_agent.May):
                self.members.permit(former, message)
            if isinstance(message, from_agent.AgentLeft):
                self.members.lose(
                    former, f"its launcher has left{': ' + message.why if message.why else ''}", now
                )
            return  # it tells all again if it gets its node back
        peer = self.members.agents.get(envelope.sender)
        if peer is not None and peer.incarnation == envelope.incarnation:
            self.members.hear(peer, envelope, route, now)
            if self.members.agents.get(peer.node) is not peer:
                return  # that were its last words: another agent has the node by now
            if isinstance(message, from_agent.AgentJoined):
                self.members.register(route, envelope, message, now)
            elif isinstance(message, from_agent.May):
                self.members.permit(peer, message)
            else:
                peers.check_event(message, peer)
                if isinstance(message, from_rank.Injected):
                    self.operators.answer(
                        to_operator.Answer(message.request, message.ok, message.text)
                    )
                    return
                self._feed(message, now)
                # one that has ended well waits for the others
                if isinstance(message, from_agent.AgentLeft) and not message.ok:
                    self.members.agents.pop(peer.node, None)
        elif isinstance(message, from_agent.AgentJoined):
            self.members.register(route, envelope, message, now)
        else:
            self.members.ask(route, now)

    def _look_at_devices(self, now: float, changed: bool) -> None:
        if self._devices.look(now, changed):
            self.members.admit_all(now)

    # -- who is in charge --------------------------------------------------------------------------

    def _about_charge(self, route: bytes, envelope: Envelope, message: Any, now: float) -> None:
        agent = envelope.incarnation
        peer = self.members.known(envelope)
        if peer is not None:
            self.members.hear(peer, envelope, route, now)
        self.charge.ways[agent] = (route, self._descriptor())
        if isinstance(message, from_agent.Standing):
            self.charge.stands(agent, message)
        elif isinstance(message, from_agent.Vote):
            if self.charge.voted(agent, message):
                self.charge.send(self.charge.ways, to_agent.Who())
            elif self.charge.in_charge and peer is None:  # late
                self.charge.send([agent], to_agent.Who())
        else:
            self.charge.kept(agent, message)
            self.members.admit_all(now)

    def _govern(self, now: float) -> None:
        """The roster follows what has happened; a manager that another one has taken the place of
        leaves."""
        if self.charge.chair.deposed:
            self.outcome = Outcome(
                None, f"another manager is in charge; this one was in term {self.charge.chair.term}"
            )
            return
        if self._overheard and self.charge.in_charge:
            for peer in [p for p in self.members.peers if p.incarnation in self._overheard]:
                self.members.ask_again(peer)
            self._overheard.clear()
        # all that are to be heard are heard: the next roster says where they are
        if self.coordinator.job.protected:
            self.charge.tend(self.members.everybody, self.coordinator.job.topology.unaccounted)

    def _arrived(self, route: bytes, message: from_agent.Arrived) -> None:
        """A launcher that has just been started asks whether the job is under way, and its node
        taken."""
        peer = self.members.agents.get(message.node)
        taken = (peer is not None and peer.line >= 0) or (message.node == 0 and self.starter >= 0)
        self._out.reply(route, to_agent.UnderWay(self.coordinator.job.protected, taken))

    def _descriptor(self) -> int:
        """Of the connection that the message at hand has come by."""
        return int(self._line.get(zmq.SRCFD))

    def _refused_key(self, address: str) -> None:
        self.drops.add("no key", f"{address} does not speak CURVE as agents do", self.clock())

    # -- operators ---------------------------------------------------------------------------------

    # -- the coordinator ---------------------------------------------------------------------------

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
                self._to_all(command)
            elif isinstance(command, TO_OWNER):
                self._to_owner(command)
            elif isinstance(command, c.Closed):
                log.info("%s", command)
                self.journal.closed(command, now)
            elif isinstance(command, c.Note):
                log.info("%s", command.text)
            elif isinstance(command, to_operator.Answer):
                self.operators.answer(command)
            else:
                self.members.carry_out(command)

    def _to_all(self, command: Any) -> None:
        log.info("to all: %.500s", command)  # a plan for 10,000 ranks is long
        data = self._out.seal(command, numbered=True)
        end = isinstance(command, to_agent.End)
        for peer in self.members.peers if end else self.members.agents.values():
            self._out.deliver(peer, data)
        if end:
            self._end(command)

    def _to_owner(self, command: Any) -> None:
        log.info("%s", command)
        topology = self.coordinator.job.topology
        node = (
            command.node
            if isinstance(command, to_agent.KeepRecords | to_agent.Seal)
            else topology.node_of(command.rank)
        )
        owner = None if node is None else self.members.agents.get(node)
        if owner is None:
            log.warning("%s reaches nobody: its node has no agent", command)
        else:
            self._out.send(owner, command)

    def _end(self, command: to_agent.End) -> None:
        (log.info if command.ok else log.error)("the job is over: %s", command.reason)
        self.journal.end(command.ok, command.reason)
        self.outcome = Outcome(command.ok, command.reason)
        self.operators.end(command.reason)

    # -- messages out ------------------------------------------------------------------------------

"""The manager's loop: one thread, one poller. Messages and timers in, `Coordinator.step`, commands
out.

The loop blocks in its poll, until the next message, deadline or check for silent agents, and on the
disk when it writes state for the next manager (history/continuity.py). No message can end the loop:
a bad one is dropped and counted, and a defect in handling one is logged with its traceback.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import zmq

from taskd.core import events as e
from taskd.core.coordinator import Coordinator
from taskd.core.election.election import Election
from taskd.core.settings import Settings
from taskd.logs import Drops
from taskd.manager import peers
from taskd.manager.devices.node_info import NodeInfos
from taskd.manager.devices.state import Devices
from taskd.manager.ended import EVENTS, Ended
from taskd.manager.endpoint import allow_files, listen
from taskd.manager.following.clusterd import ClusterDConnection
from taskd.manager.following.kubernetes import KubernetesConnection
from taskd.manager.following.sources import Source
from taskd.manager.history.continuity import Continuity
from taskd.manager.history.journal import Journal
from taskd.manager.history.observers import Observers
from taskd.manager.history.writer import JournalWriter
from taskd.manager.incoming import Incoming
from taskd.manager.limits import ManagerLimits
from taskd.manager.membership import Membership
from taskd.manager.operators import Accepted, Operators
from taskd.manager.outcome import Outcome
from taskd.manager.outgoing import Outgoing
from taskd.manager.peers import Dropped
from taskd.manager.routing import Routing
from taskd.manager.slack import slack
from taskd.manager.voters import Voters
from taskd.messages import codec
from taskd.messages.envelope import STANDBY
from taskd.mindcluster.clusterd.deciding.signals import ClusterD
from taskd.protocol import pings
from taskd.protocol.gate import Gate
from taskd.protocol.keys import Keys
from taskd.protocol.link import Link
from taskd.protocol.liveness import LivenessProbe

BATCH = 1000  # messages per turn: timers and new connections get their turn in a flood
# plain ints: arithmetic on pyzmq's enums costs microseconds per message
_NOBLOCK = int(zmq.NOBLOCK)
log = logging.getLogger("taskd.manager")


@dataclass
class Server:
    """The manager: `open()`, then `run()` once; `stop()` may be called from a signal handler or
    another thread."""

    settings: Settings
    job: str
    keys: Keys
    host: str
    port: int
    journal: Journal
    limits: ManagerLimits = field(default_factory=ManagerLimits)
    successor: bool = False  # another manager was in charge of this job before
    # pidfd of the launcher that started this manager; -1: none did, or it has ended
    starter: int = -1
    # hosts on which agents may have started other managers when the last one was lost
    rivals: Sequence[str] = ()
    devices: Devices = field(default_factory=Devices)
    cluster: ClusterDConnection = field(default_factory=ClusterDConnection)
    kubernetes: KubernetesConnection = field(default_factory=KubernetesConnection)
    node_infos: NodeInfos = field(default_factory=NodeInfos)
    observers: Observers = field(default_factory=Observers)
    sources: Sequence[Source] = ()  # besides these: the labels of the pod
    continuity: Continuity | None = None
    given: dict[str, str] = field(default_factory=dict)  # settings of this process, no secrets
    accepted: Accepted = field(default_factory=Accepted)  # of operators' requests
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self.drops = Drops(log)
        self.outcome: Outcome | None = None
        self._liveness = LivenessProbe(self.limits.probe)
        self._identity = self.keys.identity()  # as a client of other managers
        name, shape = self._identity.name, (self.settings.nodes, self.settings.ranks_per_node)
        election = Election(name, self.successor, self.host)
        self.coordinator = Coordinator(self.settings, election, ClusterD)
        self._out = Outgoing(self.job, name, lambda: election.candidate.term)
        rivals = [(host, self.port) for host in self.rivals]
        self.voters = Voters(election, shape, (self.host, self.port), self._out, rivals)
        self.members = Membership(
            self.coordinator, self._out, self._liveness, self._feed, self.devices, self.node_infos
        )
        self.members.arrived |= {0} if self.starter >= 0 else set()  # it does not say that it has
        agents = self.members.agents
        self._journal_writer = JournalWriter(self.journal, self.coordinator.job, agents)
        self.devices.serve(agents, self.coordinator.job, self._feed, self.journal.write)
        self.node_infos.serve(self.members, self.devices)
        self.operators = Operators(
            self.coordinator,
            self.members,
            self._out,
            self.devices,
            self._journal_writer,
            self._feed,
            self.accepted,
        )
        self._routing = Routing(
            self.coordinator.job,
            self.members,
            self.voters,
            self.operators,
            self._out,
            self._journal_writer,
            self.continuity,
            self.cluster,
            self.kubernetes,
            self._leave,
        )
        self._incoming = Incoming(
            self.job,
            self.coordinator,
            self.members,
            self.voters,
            self.operators,
            self._out,
            self._journal_writer,
            self._feed,
            lambda: self.starter >= 0,
            self.clock,
        )
        self._tick_floor = 0.0
        self._stopped = ""
        self._wake, self._waker = socket.socketpair()
        self._wake.setblocking(False)
        self._waker.setblocking(False)

    # -- life --------------------------------------------------------------------------------------

    def open(self) -> None:
        """Listen. Raises PortInUse and BadSetting."""
        allow_files(self.settings.nodes + 200)
        # ZeroMQ cancels a timer by going through all of its thread's: pings need several threads
        self._context: zmq.Context[Any] = zmq.Context(min(8, 1 + self.settings.nodes // 1001))
        try:
            with slack():  # ZeroMQ's threads start with the first socket
                self._gate = Gate(self._context, self.keys, self._refused_key)
            self._out.router = listen(
                self._context, self.host, self.port, self.keys, self.settings.nodes
            )
            self._monitor = self._out.router.get_monitor_socket(EVENTS)
        except BaseException:
            self._context.destroy(linger=0)
            raise
        known = self.members, self.voters, self._liveness, self._feed
        self._ended = Ended(self._monitor, *known, self.drops)
        self.devices.open(self.clock())
        self._poller = zmq.Poller()
        for source in (self._out.router, self._gate.socket, self._monitor, self._wake.fileno()):
            self._poller.register(source, zmq.POLLIN)
        self.sources = (self.cluster, self.kubernetes, self.node_infos, *self.sources)
        followed = (source.descriptor for source in self.sources)
        for descriptor in (self.devices.descriptor, self.starter, *followed):
            if descriptor >= 0:
                self._poller.register(descriptor, zmq.POLLIN)
        self._safely(self.observers.open, self.coordinator, self.journal, self.drops)
        self._journal_writer.begin(
            self._identity.name, (self.host, self.port), self.successor, self.given
        )
        shape = f"{self.settings.nodes} nodes x {self.settings.ranks_per_node} ranks"
        at, ladder = f"{self.host}:{self.port}", ", ".join(self.settings.ladder)
        log.info("manager of job %s: %s, listening on %s, ladder: %s", self.job, shape, at, ladder)

    def run(self) -> Outcome:
        """Serve until the job is over or `stop()` is called."""
        now = self.clock()
        self._next_look = now + self.limits.look
        self._next_warning = now + self.limits.first_warning
        for source in self.sources:  # what was there before this manager
            self._safely(source.poll, self._feed, now)
        try:
            while self.outcome is None:
                now = self._turn(now)
        finally:
            self._liveness.close()
            if self.outcome is not None and self.outcome.ok is None:
                self._journal_writer.leave(self.outcome.reason)
            for part in (*self.sources, self.devices, self.continuity, self.voters, self.journal):
                if part is not None:
                    part.close()
            self._out.router.disable_monitor()
            # agents must still get the last command (why the job ends), so the sockets linger
            # briefly
            self._context.destroy(linger=int(self.limits.flush * 1000))
            self._wake.close()
            self._waker.close()
            self._safely(self.observers.close)
        return self.outcome

    def stop(self, reason: str) -> None:
        """Leave the loop; the job continues, and its agents wait for another manager."""
        self._stopped = reason
        # it has left already, or repeated calls have filled the pipe
        with contextlib.suppress(OSError):
            self._waker.send(b"x")

    # -- one turn ----------------------------------------------------------------------------------

    def _turn(self, before: float) -> float:
        start = self.clock()
        self.observers.turn(start - before)
        due = self._due()
        timeout = max(0.0, due - start)
        ready = self._poll(timeout)
        now = self.clock()
        late = max(start - before, now - start - timeout)
        if late > self.limits.stall:
            log.warning(
                "the manager was stopped for %.1f s; silence in that time does not count", late
            )
            self._incoming.excuse(late)
            for peer in self.members.peers:
                peer.last_heard += late
            # messages that arrived meanwhile are read before deadlines are judged
            self._tick_floor = now + self.limits.stall
        if self._gate.socket in ready:
            self._gate.answer()
        if self._wake.fileno() in ready:
            self.outcome = Outcome(None, self._stopped)
            return now
        emptied = self._drain(now)
        # nearly always only a message is to be handled; the rest would cost an idle manager as much
        settled = self.outcome is None and self.devices.settled and not self._liveness.wanted
        if settled and now < due and ready.keys() <= {self._out.router}:
            self._incoming.ask_again()
            return now
        if self.starter in ready:
            self._starter_ended(now)
        if self._monitor in ready:
            self._ended.poll(now)
        if found := self._liveness.poll(now):
            self._ended.gone(found, now)
        if self.outcome is None:
            self._safely(self._poll_devices, now, self.devices.descriptor in ready)
            for source in self.sources:
                if source.descriptor in ready:
                    self._safely(source.poll, self._feed, now)
            self._safely(self.node_infos.separate)
        self._incoming.ask_again()
        # a deadline that a message has just set is handled in the next turn
        if self.outcome is None and now >= due:
            self._timers(now, emptied)
        return now

    def _starter_ended(self, now: float) -> None:
        """Leave if no agent has joined: there is no job yet. Otherwise the launcher's agent is gone
        too, and in a job of one node there is no other."""
        self._poller.unregister(self.starter)
        os.close(self.starter)
        self.starter = -1
        if self.outcome is None and not self.members.peers:
            why = "the launcher that started this manager has ended, and no agent has joined"
            self.outcome = Outcome(None, why)
        elif self.settings.nodes == 1:
            for peer in list(self.members.agents.values()):
                self.members.lose(peer, "its launcher has ended", now)

    def _poll(self, timeout: float) -> dict[Any, int]:
        probes = self._liveness.wanted
        for connection, writing in probes:
            self._poller.register(connection, zmq.POLLOUT if writing else zmq.POLLIN)
        try:
            return dict(self._poller.poll(math.ceil(timeout * 1000)))
        finally:
            for connection, _ in probes:
                self._poller.unregister(connection)

    def _due(self) -> float:
        deadline = self.coordinator.deadline()
        due = min(
            self._next_look,
            self._next_warning,
            self._liveness.due or math.inf,
            self.devices.due or math.inf,
        )
        # the floor: if a deadline stayed in the past after its Tick, the loop would spin
        return due if deadline is None else min(due, max(deadline, self._tick_floor))

    def _drain(self, now: float) -> bool:
        """Take up to BATCH messages; True when none is left."""
        receive = self._out.router.recv
        for _ in range(BATCH):
            try:
                first = receive(_NOBLOCK, copy=False)
            # once per turn: cheaper than a poll before each message
            except zmq.Again:
                return True
            frames, more = [first.bytes], first.more
            while more:
                frame = receive(_NOBLOCK, copy=False)
                frames.append(frame.bytes)
                more = frame.more
            try:
                self._incoming.handle(frames, first, now)
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
        # an answer that a deadline waits for may still be in the queue; a flood must not delay the
        # deadline forever
        if (
            due is not None
            and now >= max(due, self._tick_floor)
            and (emptied or now - due > self.limits.stall)
        ):
            self._tick_floor = now + (0.05 if self._safely(self._feed, e.Tick(), now) else 5.0)
        if now >= self._next_look:
            self._next_look = now + self.limits.look
            silence = self.limits.silence or pings.silent(self.settings.nodes)
            for peer in self.members.peers if emptied else ():
                why = ""
                if now - peer.last_heard > silence:
                    why = f"its agent has sent nothing for {silence:g} s"
                elif len(peer.outbox.kept) > peers.UNHEARD:
                    why = f"its agent has left {len(peer.outbox.kept)} orders unacknowledged"
                if why:
                    self._safely(self.members.lose, peer, why, now)
            self._safely(self.members.challenge, now)
            if self.continuity is not None:
                self._safely(self.continuity.write)
            self._safely(self._journal_writer.write_due, now)
            self._safely(self.observers.refresh, now)
            self._safely(self._look_for_others, now)
            if self.starter < 0 and (why := self._incoming.alone(now, self.limits.launchers)):
                log.error("the manager leaves: %s", why)
                self._leave(None, why)
        if now >= self._next_warning:
            place = self.host, self.port
            self._next_warning = self._incoming.miss_nodes(place, now, self.limits)

    # -- the coordinator ---------------------------------------------------------------------------

    def _feed(self, event: e.Event, now: float, at: float | None = None) -> None:
        self._routing.carry_out(self.coordinator.step(event, now, at), now)

    def _leave(self, ok: bool | None, reason: str) -> None:
        # a launcher on the same standard error says why as its last lines
        told = ok is not False or self.starter >= 0
        (log.info if told else log.error)("the manager ends: %s", reason)
        self.outcome = self.outcome or Outcome(ok, reason)

    def _poll_devices(self, now: float, changed: bool) -> None:
        if self.devices.poll(now, changed):
            self.members.offer_all(now)

    def _look_for_others(self, now: float) -> None:
        for event in self.voters.look_for_others(self._connect):
            self._feed(event, now)

    def _connect(self, place: tuple[str, int]) -> Link:
        return Link(place, self.keys, self.job, STANDBY, self._identity, refusal=False)

    def _refused_key(self, address: str) -> None:
        self.drops.add("no key", f"{address} does not use CURVE as agents do", self.clock())

    def _safely(self, action: Callable[..., object], *args: Any) -> bool:
        """Run an action that no message asked for: a defect is logged, and the loop continues."""
        try:
            action(*args)
        except Exception:
            log.exception("%s%s failed", action.__name__.lstrip("_"), args)
            self.drops.total["defect"] += 1
            return False
        return True

"""The parts of an agent and their shared state: the node's ranks, the manager, the verdict.

The agent decides nothing: it reports what happens on the node to the manager, and carries out the
manager's orders or hands them to the ranks. Two threads use it: its own (loop.py) and the
launcher's (supervisor.py).
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import subprocess
import threading
import uuid
from collections.abc import Callable
from typing import Any

from taskd.agent import announcement
from taskd.agent.copies.service import Records
from taskd.agent.device_info import DeviceInfo
from taskd.agent.manager.manager_watch import ManagerWatch
from taskd.agent.manager.managers import Managers
from taskd.agent.orders import Orders
from taskd.agent.ranks.children import Children
from taskd.agent.ranks.deaths import Deaths
from taskd.agent.ranks.model import Epoch, Rank, Verdict
from taskd.agent.ranks.rank_lines import RankLines
from taskd.agent.ranks.rank_monitor import RankMonitor, node_progress
from taskd.agent.ranks.rank_processes import RankProcesses
from taskd.agent.ranks.replacements import Replacements
from taskd.agent.ranks.watchdog import Limits, Watchdog
from taskd.agent.standby import Standby
from taskd.messages import codec, from_agent, from_rank
from taskd.messages.envelope import STANDBY
from taskd.protocol import addresses
from taskd.protocol.keys import Keys
from taskd.protocol.mailbox import Action, Mailbox

log = logging.getLogger("taskd.agent")


class Agent:
    """Used by the agent's thread except where noted."""

    def __init__(
        self,
        keys: Keys,
        job: str,
        manager_wait: float,
        limits: Limits,
        unprotected: bool,
        device_info: DeviceInfo | None = None,
    ) -> None:
        """`unprotected`: if no manager is available, ranks train unprotected; otherwise the job
        ends."""
        self.keys, self.job = keys, job
        self.identity = keys.identity()
        self.mailbox = Mailbox()
        self._lock = threading.Lock()
        self._verdict: Verdict | None = None
        self.epoch: Epoch | None = None
        self._old: Epoch | None = None  # stopped, not removed yet
        self.next: Epoch | None = None  # its processes are about to be started
        self.node, self.nodes = 0, 1
        self.context: Any = None  # torch's SubprocessContext
        self.store: Any = None
        self._store_address = ("", 0)
        self.keepers: tuple[int, ...] = ()  # the nodes that keep our ranks' records
        # replaced processes that must be reaped
        self.retired: list[subprocess.Popen[bytes]] = []
        self.switches = 0  # how often recovery has been switched, see to_agent.KeepSwitch
        self.profile: tuple[int, ...] = ()  # what its ranks write down, see to_rank.Profile
        self.left = False  # this node has reported that it ended well
        self.starts = False  # the launcher starts replacements itself (msrun)
        # and those that it has to start, as (local rank, incarnation)
        self.wanted: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
        # a rank has ended, there is a verdict, or the job is over: the launcher's thread may wait
        self.news = threading.Event()
        self.over = threading.Event()  # the job is, or no manager can tell
        self.managers: Managers | None = None
        self.records: Records | None = None
        self.device_info = device_info or DeviceInfo()
        self._devices = 0  # ranks that the node has, or the standby can run
        self.lines = RankLines(self, f"taskd-{os.getpid()}-{uuid.uuid4().hex[:12]}")
        self.children = Children(self.call)
        self.deaths = Deaths(self)
        self.processes = RankProcesses(self)
        self.replacements = Replacements(self.processes.started, self.processes.forked_ended)
        self.monitor = RankMonitor(self.tell, self.call, Watchdog(limits))
        self.standby = Standby(self)
        self.orders = Orders(self)
        self.manager_watch = ManagerWatch(self, manager_wait, unprotected)

    def call(self, action: Action) -> None:
        """Run `action` in the agent's thread. From any thread."""
        self.mailbox.put(action)

    # -- what other nodes connect to ---------------------------------------------------------------

    def listen(self, store: Any, address: tuple[str, int], nodes: int, ports: range | None) -> None:
        """Serve other nodes: `store`, this agent's rendezvous store at `address`, and, in a job of
        several `nodes`, records, at one of `ports`. Called once, by the launcher's thread."""
        self.store, self._store_address, self.nodes = store, address, nodes
        if nodes > 1:
            self.records = Records(address[0], self.keys, self.identity, self.job, self._ask, ports)

    def _ask(self, question: from_agent.May) -> None:
        self.call(lambda: self.tell(question))

    @property
    def addresses(self) -> tuple[tuple[str, int], tuple[str, int]]:
        """Where other nodes reach the store, and send their records."""
        if self.records is not None:
            return self._store_address, self.records.address
        assert self.managers is not None
        return self._store_address, (self.managers.here, 0)

    def connect(self, address: tuple[str, int], node: int) -> None:
        """Connect to the manager, first at `address`, as `node`. Called once, by the launcher's
        thread."""
        # in a job of one node the next manager can only be where the first one was
        if self.records is not None:
            here = self.records.address[0]
        else:
            here = address[0] if addresses.is_here(address[0]) else ""
        self.managers = Managers(
            address, self.keys, self.identity, self.job, node, self.nodes, here, self.announce
        )

    @property
    def name(self) -> str:
        """This process's name to managers."""
        return self.identity.name

    @property
    def obeyed(self) -> tuple[int, str]:
        """Term and name of the manager acknowledged last."""
        assert self.managers is not None
        return self.managers.obeyed

    # -- epochs ------------------------------------------------------------------------------------

    def adopt(self, epoch: Epoch) -> None:
        """Make `epoch` the present one; its processes run or are about to be started. From any
        thread."""
        with self._lock:
            self.epoch, self._verdict = epoch, None

    def begin(self, epoch: Epoch) -> None:
        """Watch the ranks of an adopted epoch, and start those without a process."""
        self.monitor.begin(epoch)
        if self.records is not None:
            self.records.begin(self.node, epoch)
        for rank in epoch.ranks.values():
            if rank.process is None:
                self.processes.start(rank)
        self.lines.process_known()
        self.announce()

    def protect(self, epoch: Epoch) -> None:
        """Mark the ranks of `epoch` as protected."""
        with self._lock:
            epoch.protected = True

    def is_over(self, epoch: Epoch) -> bool:
        """Whether the node's ranks have ended well and are not needed again. In a job of several
        nodes, others may train on and still need ranks that have left their loop: the manager's
        `Release` tells."""
        ranks = epoch.ranks.values()
        return all(r.over == "ended well" for r in ranks) and (
            self.nodes == 1 or max(r.step for r in ranks) <= epoch.released
        )

    def stopping(self) -> None:
        """The launcher is about to stop its processes: their ends are not faults. From any
        thread."""
        with self._lock:
            if self.epoch is not None:
                self._old = self.epoch
            self.epoch = None

    def unless_stopping(self, epoch: Epoch, put: Callable[[], bool]) -> bool:
        """Run `put`, which hands a process to the launcher, and return its result; False if the
        launcher is already stopping the processes of `epoch`. What was handed over before is
        stopped with them."""
        with self._lock:
            return self.epoch is epoch and put()

    def epochs(self) -> list[Epoch]:
        """Those whose shared memory is there. From any thread."""
        known = {id(e): e for e in (self.epoch, self._old, self.next) if e is not None}
        return [e for e in known.values() if not e.dropped]

    def drop_epochs(self) -> None:
        """Remove all epochs and their shared memory. Called by the launcher's thread."""
        for epoch in self.epochs():
            epoch.drop()
        self.epoch = self._old = self.next = None

    # -- a standby ---------------------------------------------------------------------------------

    def be_node(self, node: int, epoch: Epoch) -> None:
        assert self.managers is not None and self.records is not None
        self.node = node
        self.monitor.begin(epoch)
        self.records.begin(node, epoch)
        self.managers.be_node(node)

    def be_standby(self) -> None:
        """Become a standby again, and kill the processes that were started."""
        assert self.managers is not None
        epoch = self.epoch
        for rank in epoch.ranks.values() if epoch is not None else ():
            self.processes.kill(rank)
        self.stopping()
        self.managers.be_node(STANDBY)
        self.announce()

    # -- deciding ----------------------------------------------------------------------------------

    def decide(self, verdict: Verdict) -> None:
        log.error("%s: %s", verdict.what, verdict.reason)
        with self._lock:
            self._verdict = verdict
        self.news.set()

    @property
    def decided(self) -> Verdict | None:
        """The last verdict on the present epoch. From any thread."""
        with self._lock:
            return self._verdict

    # -- sending -----------------------------------------------------------------------------------

    def announce(self) -> None:
        """Send the manager everything that it must know about this node."""
        assert self.managers is not None
        self.standby.look_at_manager()
        self.managers.send_voter_state()
        if self.standby.undecided(self.managers.addressee):
            return  # it asks again once it is acknowledged
        if self.standby.room is not None:
            self.managers.begin(
                from_agent.StandbyJoined(
                    self.name,
                    self.standby.room,
                    self.addresses[1],
                    self.standby.prepares,
                )
            )
            self._tell_devices(self.device_info.state)
        epoch = self.epoch
        if epoch is None or self.standby.preparing:
            return
        self.managers.begin(announcement.agent_joined(self, epoch))
        self._tell_devices(self.device_info.state)
        # a new manager does not know which ranks have already ended
        for rank in epoch.ranks.values():
            if rank.over == "ended well":
                self.deaths.tell_end(rank)
            if rank.groups:
                groups = from_rank.OptimizerReplicas(rank.number, rank.incarnation, rank.groups)
                self.tell(groups)
            if rank.connected:
                self.tell(from_rank.GroupReady(rank.number, rank.incarnation))
        if self.left:
            self.tell(from_agent.AgentLeft(self.node, True))

    def look_at_devices(self) -> None:
        """Report what device-info says now, if that is something else."""
        if self._devices:  # announced
            self._tell_devices(self.device_info.news)

    def _tell_devices(self, ask: Callable[[int, int], Any]) -> None:
        assert self.managers is not None
        self._devices = self.standby.room or (len(self.epoch.ranks) if self.epoch else 0)
        if not self._devices:
            return  # between two epochs
        # the node that a standby has been given is its own once its messages are the node's
        if (message := ask(self.managers.link.node, self._devices)) is not None:
            self.tell(message)

    def tell(self, message: Any) -> None:
        """Send to the manager."""
        assert self.managers is not None
        self.managers.send(message)

    def beat(self, asked: float = 0.0) -> None:
        """Send a heartbeat. `asked`: it answers the TimeAsked of that time, and nothing else."""
        assert self.managers is not None
        epoch, unheard = self.epoch, self.managers.unheard
        alive = sum(r.over is None for r in epoch.ranks.values()) if epoch else 0
        shown = None
        if epoch is not None and not asked and not self.standby.preparing and not epoch.dropped:
            shown = node_progress(epoch)
        self.tell(from_agent.Heartbeat(alive, unheard, asked, shown))

    def tell_ranks(self, epoch: Epoch, message: Any) -> None:
        for rank in epoch.ranks.values():
            self.tell_rank(rank, message)

    def tell_rank(self, rank: Rank, message: Any) -> None:
        if rank.channel is not None:
            with contextlib.suppress(OSError):  # it is dying; its death will be reported
                rank.channel.send(codec.encode(message))

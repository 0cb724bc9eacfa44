"""An agent: assembles its parts, and reports what they know to the manager.

The agent decides nothing: it reports what happens on the node to the manager, and carries out the
manager's orders or hands them to the ranks. Two threads use it: its own (loop.py) and the
launcher's (supervisor.py).
"""

from __future__ import annotations

import logging
import os
import signal
import time
import uuid
from collections.abc import Callable
from typing import Any

from msgspec import structs

from taskd.agent.device_info import DeviceInfo
from taskd.agent.leaving import Leaving
from taskd.agent.manager.manager_watch import ManagerWatch
from taskd.agent.member import Member
from taskd.agent.orders import Orders
from taskd.agent.ranks.beats import node_progress
from taskd.agent.ranks.children import Children
from taskd.agent.ranks.connecting import Connecting
from taskd.agent.ranks.deaths import Deaths
from taskd.agent.ranks.model import Epoch
from taskd.agent.ranks.rank_connections import RankConnections
from taskd.agent.ranks.rank_monitor import RankMonitor
from taskd.agent.ranks.rank_processes import RankProcesses
from taskd.agent.ranks.replacements import Replacements
from taskd.agent.ranks.watchdog import HangLimits, Watchdog
from taskd.agent.standby import Standby
from taskd.core.lifecycle.forming import common
from taskd.cython_api import slot
from taskd.messages import from_agent, from_rank
from taskd.protocol.keys import Keys

log = logging.getLogger("taskd.agent")


class Agent(Member):
    """Used by the agent's thread except where noted."""

    def __init__(
        self,
        keys: Keys,
        job: str,
        manager_wait: float,
        limits: HangLimits,
        unprotected: bool,
        device_info: DeviceInfo | None = None,
        preemption: signal.Signals | None = None,
        grace: float = 0.0,
    ) -> None:
        """`unprotected`: if no manager is available, ranks train unprotected; otherwise the job
        ends. `preemption`, `grace`: see Leaving."""
        super().__init__(keys, job)
        self.leaving = Leaving(self, preemption, grace)
        self.device_info = device_info or DeviceInfo()
        self._devices = 0  # ranks on the node, or that the standby can run
        self.children = Children(self.call)
        self.monitor = RankMonitor(self.report, self.call, self.leaving, Watchdog(limits))
        self.connecting = Connecting()
        self.manager_watch = ManagerWatch(self, manager_wait, unprotected)
        self.replacements = Replacements(
            lambda order, process: self.processes.started(order, process),
            lambda process, status: self.processes.forked_ended(process, status),
            lambda order, why: self.processes.failed(order, why),
        )
        self.deaths = Deaths(
            self,
            self.children,
            self.replacements,
            self.monitor,
            lambda rank: self.standby.died(rank),
        )
        self.connections = RankConnections(
            self,
            self.deaths,
            self.replacements,
            self.monitor,
            lambda epoch: self.standby.ready(epoch),
            lambda: self.manager_watch.given_up,
            f"taskd-{os.getpid()}-{uuid.uuid4().hex[:12]}",
        )
        self.processes = RankProcesses(
            self, self.children, self.deaths, self.replacements, self.connections
        )
        self.standby = Standby(self, self.processes, self.monitor)
        self.orders = Orders(
            self,
            self.deaths,
            self.processes,
            self.monitor,
            self.standby,
            self.manager_watch,
            self.beat,
        )

    # -- epochs ------------------------------------------------------------------------------------

    def begin(self, epoch: Epoch) -> None:
        """Watch the ranks of an adopted epoch, and start those without a process."""
        self.monitor.begin(epoch)
        if self.records is not None:
            self.records.begin(self.node, epoch)
        for rank in epoch.ranks.values():
            if rank.process is None:
                self.processes.start(rank)
        self.connections.process_known()
        self.announce()

    # -- sending -----------------------------------------------------------------------------------

    def announce(self) -> None:
        assert self.managers is not None
        self.standby.look_at_manager()
        self.managers.send_voter_state()
        if self.standby.undecided(self.managers.addressee):
            return  # the manager asks again once it is acknowledged
        if self.standby.room is not None:
            self.managers.begin(
                from_agent.StandbyJoined(
                    self.name,
                    self.standby.room,
                    self.addresses[1],
                    self.standby.prepares,
                    self.about,
                )
            )
            self._tell_devices(self.device_info.state)
        epoch = self.epoch
        if epoch is None or self.preparing:
            return
        self.managers.begin(self._joined(epoch))
        self._tell_devices(self.device_info.state)
        # a new manager does not know which ranks have already ended
        for rank in epoch.ranks.values():
            if rank.over == "ended well":
                self.deaths.report_end(rank)
            if rank.replicas is not None:
                self.report(structs.replace(rank.replicas, incarnation=rank.incarnation))
            if rank.connected:
                self.report(from_rank.GroupReady(rank.number, rank.incarnation))
        if epoch.refusal is not None and epoch.protected:
            self.report(epoch.refusal)
        if self.left:
            self.report(from_agent.AgentLeft(self.node, True))
        self.leaving.repeat()

    def _joined(self, epoch: Epoch) -> from_agent.AgentJoined:
        ranks = list(epoch.ranks.values())
        joined = [r for r in ranks if r.joined]
        failed = [r for r in ranks if r.failed or r.away]
        stateless = [r for r in ranks if r.stateless and not (r.failed or r.away)]
        waiting = [
            r
            for r in ranks
            if r.over is None and epoch.page.read(r.local).phase == slot.INTERRUPTED
        ]
        store, records = self.addresses
        return from_agent.AgentJoined(
            node=self.node,
            ranks=tuple(r.number for r in ranks),
            store=store,
            epoch=epoch.number,
            incarnations=tuple(r.incarnation for r in ranks),
            joined=tuple(r.number for r in joined),
            dumps=common(r.dumps for r in joined),
            waiting=tuple(r.number for r in waiting) if epoch.protected else (),
            dead=tuple(r.number for r in failed),
            new=tuple(r.number for r in stateless),
            ready=tuple(r.number for r in stateless if r.ready),
            left=tuple(r.left for r in (*failed, *stateless)),
            generation=epoch.generation if epoch.protected else 0,
            interruption=epoch.interruption,
            agent=self.name,
            records=records,
            keepers=self.keepers,
            keeps=self.records.keeps() if self.records is not None else (),
            released=epoch.released,
            moves_to=epoch.moves_to,
            former=epoch.former,
            moving=epoch.moving,
            handlers=any(r.handlers for r in ranks),
            switches=self.switches,
            profile=self.profile,
            faults=self.faults,
            condemned=self.condemned,
            unprotected=epoch.unprotected,
            resumed=epoch.resumed,
            stand_ins=epoch.stand_ins,
            about=self.about,
        )

    def look_at_devices(self) -> None:
        """Report device-info if it has changed."""
        if self._devices:  # announced
            self._tell_devices(self.device_info.news)

    def _tell_devices(self, ask: Callable[[int, int], Any]) -> None:
        assert self.managers is not None
        self._devices = self.standby.room or (len(self.epoch.ranks) if self.epoch else 0)
        if not self._devices:
            return  # between two epochs
        # a standby reports devices of a given node only once it sends as that node
        if (message := ask(self.managers.link.node, self._devices)) is not None:
            self.report(message)

    def beat(self, asked: float = 0.0) -> None:
        """Send a heartbeat. `asked`: the time of the TimeAsked that it answers; it then does
        nothing else."""
        assert self.managers is not None
        epoch, unheard = self.epoch, self.managers.unheard
        alive = sum(r.over is None for r in epoch.ranks.values()) if epoch else 0
        shown = None
        if epoch is not None and not asked and not self.preparing and not epoch.dropped:
            shown = node_progress(epoch, self.monitor.stopped, time.monotonic())
        self.report(from_agent.Heartbeat(alive, unheard, asked, shown))

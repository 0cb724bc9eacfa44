"""State shared by the threads of a rank whose framework repairs itself."""

from __future__ import annotations

import os
import queue
import threading
from typing import Any

from taskd import settings
from taskd.adaptor.mindio.callbacks import Callbacks
from taskd.adaptor.mindio.enums import Action, ReportState
from taskd.adaptor.mindio.handlers import Handlers
from taskd.adaptor.mindio.updates import Updates
from taskd.cython_api import slot
from taskd.messages import from_rank, to_rank
from taskd.messages.values import Load, ReplicaGroups
from taskd.worker.communication.agent_client import AgentClient


class Rank:
    """`handlers`, `updates`, `callbacks`: see there. `changed` is notified of each change here.
    `orders`: those that are carried out by handlers. Methods are for any thread."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.world_size = world_size
        self.agent = AgentClient(rank)
        self.changed = threading.Condition()
        self.updates = Updates(self.changed)
        self.handlers = Handlers()
        self.callbacks = Callbacks(self.request)
        self.limit = settings.handler_limit(os.environ)
        self.orders: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.orders_busy = False  # a handler that communicates is being called
        self.resumed = slot.interruption()  # the last interruption that training went on after
        self.replacement = self.agent.incarnation > 0
        self.repair_type, self.repair_step = "unknown", 0
        self.waiting = self.over = self.ready = self.prepared = False
        self.reported = ReportState.RS_NORMAL
        self.uce = False  # this rank's memory has failed
        self.load: Load | None = None  # no rank's state is right: what all have to load
        self.loaded = -1  # the step of the checkpoint that the framework has loaded
        self.kinds: tuple[int, ...] = ()  # of the optimizers that this rank has parts of
        self.groups: ReplicaGroups = ()  # of each kind, see replica_info.py
        self.data_parallel: tuple[int, ...] = ()  # this rank's group, ascending
        self.zit = False  # the framework can train elastically, by its own account
        self.settled = 0  # updates after which the loop had done all else: see tft_pause_train
        self.shrunk = False  # it goes on without ranks that are not all back
        self.first_update_reported = True  # the first update after a repair is reported
        self.generation = 0
        self.action: Action | None = None  # what the training thread does next, once it is known

    @property
    def interrupted(self) -> bool:
        """Whether a repair is under way that this rank has to take part in."""
        return bool(slot.interruption() > self.resumed)

    def request(self, strategy: str) -> None:
        """A callback of the framework ends the job."""
        self.agent.report(from_rank.StrategyRequested, strategy)

    def act(self, action: Action) -> None:
        """Let the training thread continue."""
        with self.changed:
            # at once, not when the thread wakes: it does not stand still for the next repair
            self.action, self.waiting = action, False
            self.changed.notify_all()

    def resume(self, order: to_rank.Resume) -> None:
        """The repair is done."""
        with self.changed:
            self.replacement = self.uce = self.prepared = self.ready = False
            self.load, self.loaded = None, -1
            self.resumed, self.generation = order.interruption, order.generation
            self.settled = order.step
            self.first_update_reported = False
            self.repair_type = "unknown"
        self.updates.open(order.step, order.interruption)
        if not self.over:
            self.act(Action.RETRY)

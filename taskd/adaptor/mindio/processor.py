"""This process as a rank whose framework repairs itself.

Three threads: the training thread, which reports updates and waits here while a repair is under
way; `taskd-orders`, which calls the framework's handlers one after the other; `taskd-lines`, which
receives orders, so that an interruption can stop a handler that waits for a rank which is gone.
"""

from __future__ import annotations

import atexit
import logging
import os
import queue
import sys
import threading
from typing import Any

from taskd import logs, settings
from taskd.adaptor.mindio import control, exceptions, frameworks, handlers
from taskd.adaptor.mindio.callbacks import Callbacks
from taskd.adaptor.mindio.enums import Action, ReportState
from taskd.adaptor.mindio.handlers import Handlers
from taskd.adaptor.mindio.pausing import Order, Pausing
from taskd.adaptor.mindio.updates import Stopped, Updates
from taskd.cython_api import slot
from taskd.messages import from_rank, to_rank
from taskd.messages.values import ReplicaGroup
from taskd.worker.communication.channel import AgentGone, Channel
from taskd.worker.process import belonging
from taskd.worker.set_up import imports

log = logging.getLogger("taskd.worker")

# Seconds that an exception of unknown cause waits for an interruption: where a peer has died, the
# order arrives some milliseconds after its connections have broken.
UNEXPLAINED = 1.0
REPORTS = {
    ReportState.RS_UCE: (from_rank.MEMORY, "UCE"),
    ReportState.RS_HCCL_FAILED: (from_rank.NETWORK, "HCCL failed"),
}


class Processor:
    """`handlers`, `updates`, `callbacks`: see there. Methods without another remark are the
    training thread's."""

    def __init__(self, rank: int, world_size: int) -> None:
        """Claim this rank's slot. Raises OSError."""
        self.rank, self.world_size = rank, world_size
        self.incarnation = int(os.environ.get("TASKD_INCARNATION", "0"))
        logs.setup(f"worker-{rank}")
        belonging.attach()
        belonging.dies_with_launcher()
        self.changed = threading.Condition()
        self.updates = Updates(self.changed)
        self.handlers = Handlers()
        self.callbacks = Callbacks(self.request)
        self.limit = settings.handler_limit(os.environ)
        self.orders: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.resumed = slot.interruption()  # the last interruption that training went on after
        self.replacement = self.incarnation > 0
        self.repair_type, self.repair_step = "unknown", 0
        self.waiting = self.over = self.ready = self.prepared = False
        self.reported = ReportState.RS_NORMAL
        self.uce = False  # this rank's memory has failed
        self.refusal = ""  # why the job has to end: what was asked for, and is not done
        self.released = -1
        self._action: Action | None = None
        self._told = True  # the first update after a repair is reported
        self.generation = 0
        self._pausing = Pausing(self)
        self._channel: Channel | None = None
        self._sending = threading.Lock()

    # -- beginning and end -------------------------------------------------------------------------

    def start(self) -> None:
        """Connect to the agent. Raises AgentGone, OSError."""
        from taskd.adaptor.mindio.orders import Orders

        agent = os.environ["TASKD_AGENT"]
        imports.save()
        frameworks.sets_up_by_itself()
        self._channel = Channel(agent)
        self.send(from_rank.RankHello(self.rank, self.incarnation, os.getpid()))
        control.start(agent, self)
        atexit.register(self._ends)
        carrying_out = Orders(self)
        threading.Thread(target=carrying_out.run, name="taskd-orders", daemon=True).start()
        threading.Thread(target=self._listen, name="taskd-lines", daemon=True).start()
        if not self.replacement:
            self.send(from_rank.RankJoined(self.rank, self.incarnation, handlers=True))

    def _ends(self) -> None:
        """The interpreter ends by itself: its exit status counts."""
        with self.changed:
            self.over = True
        slot.progress(self.updates.step, slot.DONE)

    def finish(self) -> None:
        """The training loop has ended: wait until all ranks' have, since one that fails until then
        needs this one. Raises Stopped if the loop is taken back."""
        step = self.updates.step
        if self.replacement or self.over or not step:
            return
        self.send(from_rank.RankFinished(self.rank, self.incarnation, step))
        slot.progress(step, slot.INTERRUPTED)
        with self.changed:
            self.changed.wait_for(lambda: self.released >= step or self.interrupted or self.over)
            if self.released < step and self.interrupted and not self.over:
                raise Stopped
        slot.progress(step, slot.COMMITTED)

    # -- the agent ---------------------------------------------------------------------------------

    def send(self, message: Any) -> None:
        """From any thread."""
        assert self._channel is not None
        with self._sending:
            self._channel.send(message)

    def request(self, strategy: str) -> None:
        """A callback of the framework ends the job. From any thread."""
        self.send(from_rank.StrategyRequested(self.rank, self.incarnation, strategy))

    def refuse(self) -> None:
        """Have the job end, if what it needs is not done. From any thread."""
        if self.refusal:
            told = from_rank.StrategyRequested(self.rank, self.incarnation, "exit", self.refusal)
            self.send(told)

    def _listen(self) -> None:
        assert self._channel is not None
        try:
            while True:
                self._take(self._channel.receive())
        except AgentGone as error:
            self.leave(str(error))
        except Exception:
            log.exception("rank %d: its orders cannot be received any more", self.rank)
            self.leave("no orders")

    def leave(self, why: str) -> None:
        """The launcher has ended, and this rank ends with it."""
        log.error("rank %d ends: %s", self.rank, why)
        try:
            self.handlers.call(handlers.EXIT)
        finally:
            os._exit(1)

    def _take(self, order: Any) -> None:
        """Receive an order."""
        if isinstance(order, to_rank.Interrupt):
            self._pausing.forget()
            if self.orders_busy:
                # a handler may wait for a rank that is gone: what stops the device ends that too
                self.stop_handler()
        if isinstance(order, to_rank.Release):
            with self.changed:
                self.released = max(self.released, order.step)
                self.changed.notify_all()
        elif isinstance(order, Order):
            self._pausing.take(order)
        elif isinstance(order, to_rank.Unprotected):
            log.warning("rank %d is not protected any more: %s", self.rank, order.reason)
            self.act(Action.EXIT)
        else:
            self.orders.put(order)
        with self.changed:  # an interruption is in the state page before its order arrives
            self.changed.notify_all()

    orders_busy = False  # a handler that communicates is being called

    def stop_handler(self) -> None:
        """From any thread."""
        try:
            self.handlers.call(handlers.STOP)
        except Exception:
            log.exception("rank %d: its stop handler failed", self.rank)

    @property
    def interrupted(self) -> bool:
        """Whether a repair is under way that this rank has to take part in. From any thread."""
        return bool(slot.interruption() > self.resumed)

    # -- steps -------------------------------------------------------------------------------------

    def begin_update(self) -> None:
        """Raises Stopped, RuntimeError."""
        self.updates.begin()

    def end_update(self, step: int) -> None:
        """Does not raise Stopped: MindSpore has to reset a flag of its own after this. Raises
        RuntimeError, ValueError."""
        self.updates.end(step)
        if not self._told:
            self._told = True
            self.send(
                from_rank.StepCommitted(self.rank, self.incarnation, self.generation, step - 1)
            )

    def pause(self, step: int) -> None:
        """Wait here while a pause before the next step is ordered. Raises Stopped."""
        if self.replacement:
            return
        self._pausing.wait(step)
        slot.patience(PATIENCE)

    def set_replicas(self, groups: tuple[ReplicaGroup, ...]) -> None:
        self.send(from_rank.OptimizerReplicas(self.rank, self.incarnation, groups))

    # -- faults ------------------------------------------------------------------------------------

    def report(self, state: ReportState, code: str = "", error: str = "") -> None:
        """The training thread has left the training, and why. `error`: what it raised."""
        step, text = self.updates.step, code or state.name
        with self.changed:
            self.reported = state
            self.uce = self.uce or state is ReportState.RS_UCE
            if state is ReportState.RS_PREREPAIR_FINISH:
                self.prepared = True
            self.changed.notify_all()
        if state in REPORTS:
            fault, what = REPORTS[state]
            text = f"{what}: {code}" if code else what
            self.send(from_rank.RankFaulted(self.rank, self.incarnation, step, fault, text))
        elif state in (ReportState.RS_RETRY, ReportState.RS_UCE_CORRUPTED):
            self.refusal = exceptions.refusal(state, error or code)
            log.error("rank %d: %s", self.rank, self.refusal)
            self.refuse()
        elif state in (ReportState.RS_INIT_FINISH, ReportState.RS_PREREPAIR_FINISH):
            if self.replacement and not self.ready:
                self.ready = True
                self.send(from_rank.RankReady(self.rank, self.incarnation))
        elif state is ReportState.RS_UNKNOWN:
            self.send(from_rank.RankRaised(self.rank, self.incarnation, step, text[:300]))
        elif state is ReportState.RS_NORMAL and not self.interrupted:
            fault = from_rank.OTHER
            text = "it was stopped, and taskd had not ordered that"
            self.send(from_rank.RankFaulted(self.rank, self.incarnation, step, fault, text))

    def explained(self) -> bool:
        """Whether an interruption explains an exception of unknown cause: waits for it a moment."""
        with self.changed:
            return self.changed.wait_for(lambda: self.interrupted, UNEXPLAINED)

    def stay_for_dump(self) -> None:
        """Wait here while a last checkpoint is saved: another thread of this process does that, and
        the launcher ends the process after it. Returns at once for another strategy."""
        with self.changed:
            self.changed.wait_for(lambda: self.repair_type != "unknown", UNEXPLAINED)
            saving = self.repair_type == "dump"
        if saving:
            self.wait_for_action()

    def wait_for_action(self) -> Action:
        """Wait until the repair is done, or will not be."""
        slot.progress(self.updates.step, slot.INTERRUPTED)
        with self.changed:
            self.waiting = True
            self.changed.notify_all()
            self.changed.wait_for(lambda: self._action is not None)
            action, self._action, self.waiting = self._action, None, False
        assert action is not None
        return action

    def act(self, action: Action) -> None:
        """Let the training thread go on. From any thread."""
        with self.changed:
            # at once, not when the thread wakes: it does not stand still for the next repair
            self._action, self.waiting = action, False
            self.changed.notify_all()

    def resume(self, order: to_rank.Resume) -> None:
        """The repair is done. From the thread that carries out orders."""
        with self.changed:
            self.replacement = self.uce = self.prepared = self.ready = False
            self.resumed, self.generation, self._told = order.interruption, order.generation, False
            self.repair_type = "unknown"
        self.updates.open(order.step, order.interruption)
        if not self.over:
            self.act(Action.RETRY)


# seconds that a step may take before the rank counts as hung: an evaluation between two updates
# cannot be told from a step
PATIENCE = 600

_current: Processor | None = None


def current() -> Processor | None:
    """This process's, once tft_init_processor was called under taskd's agent."""
    return _current


def make(rank: int, world_size: int) -> None:
    """Make this process's, if it runs under taskd's agent. Raises ValueError, OSError."""
    global _current
    if "TASKD_AGENT" not in os.environ:
        print(
            "taskd: not protected: this rank was not started by taskd's agent, so that nothing is"
            " repaired; start it with `taskd run`, with a patched torchrun and"
            " TASKD_PROCESS_ENABLE=on, or with msrun and MS_ENABLE_TFT",
            file=sys.stderr,
        )
        return
    if _current is not None:
        raise ValueError("tft_init_processor was called already in this process")
    _current = Processor(rank, world_size)

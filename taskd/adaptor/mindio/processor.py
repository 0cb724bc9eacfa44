"""This process as a rank whose framework repairs itself.

Three threads: the training thread, which reports updates and waits here while a repair is under
way; `taskd-orders`, which calls the framework's handlers one after the other; `taskd-lines`, which
receives orders, so that an interruption can stop a handler that waits for a rank which is gone.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from typing import Any

from taskd import logs, settings
from taskd.adaptor.mindio import elastic, exceptions, frameworks, handlers
from taskd.adaptor.mindio.enums import Action, ReportState
from taskd.adaptor.mindio.orders import Orders
from taskd.adaptor.mindio.pausing import Order, Pausing
from taskd.adaptor.mindio.rank import Rank
from taskd.adaptor.mindio.updates import Stopped
from taskd.cython_api import slot
from taskd.messages import from_rank, to_rank
from taskd.messages.values import ReplicaGroup
from taskd.worker import control_thread
from taskd.worker.communication.channel import AgentGone
from taskd.worker.control_thread import Answers
from taskd.worker.process import belonging
from taskd.worker.set_up import imports

log = logging.getLogger("taskd.worker")

# Seconds that an exception waits for an interruption which explains it: where a peer has died, the
# order arrives some milliseconds after its connections have broken.
UNEXPLAINED = 1.0
NO_FAULTS = (
    "faults are injected into ranks that called taskd.protect; this one's framework repairs itself:"
    " kill the process, or make the device fail"
)
REPORTS = {
    ReportState.RS_UCE: (from_rank.MEMORY, "UCE"),
    ReportState.RS_HCCL_FAILED: (from_rank.NETWORK, "HCCL failed"),
}


class Processor(Rank):
    """The rank that the framework calls. Unless noted, methods are for the training thread."""

    def __init__(self, rank: int, world_size: int) -> None:
        """Claim this rank's slot. Raises OSError."""
        logs.setup(f"worker-{rank}")
        belonging.attach()
        belonging.dies_with_launcher()
        super().__init__(rank, world_size)
        self._released = -1
        self._elastic = settings.elastic(os.environ)  # until the log has why that is not possible
        self._pausing = Pausing(self)

    # -- beginning and end -------------------------------------------------------------------------

    def start(self) -> None:
        """Connect to the agent. Raises AgentGone, OSError."""
        imports.save()
        frameworks.sets_up_by_itself()
        self.agent.connect()
        control_thread.start(self.agent, Answers(self._progress, lambda *_: (False, NO_FAULTS)))
        atexit.register(self._ends)
        threading.Thread(target=Orders(self).run, name="taskd-orders", daemon=True).start()
        threading.Thread(target=self._listen, name="taskd-lines", daemon=True).start()
        if not self.replacement:
            self.agent.report(from_rank.RankJoined, handlers=True)

    def _progress(self) -> tuple[int, int]:
        return self.updates.step, int(self.updates.updating)

    def _ends(self) -> None:
        """The interpreter ends by itself: its exit status counts."""
        with self.changed:
            self.over = True
        slot.progress(self.updates.step, slot.DONE)

    def finish(self) -> None:
        """The training loop has ended: wait until all ranks' loops have, since a rank that fails
        until then needs this one. Raises Stopped if the loop is rolled back."""
        step = self.updates.step
        if self.replacement or self.over or not step:
            return
        self.agent.report(from_rank.RankFinished, step)
        slot.progress(step, slot.INTERRUPTED)
        with self.changed:
            self.changed.wait_for(lambda: self._released >= step or self.interrupted or self.over)
            if self._released < step and self.interrupted and not self.over:
                raise Stopped
        slot.progress(step, slot.COMMITTED)

    # -- the agent ---------------------------------------------------------------------------------

    def _listen(self) -> None:
        try:
            while True:
                self._take(self.agent.channel.receive())
        except AgentGone as error:
            self.leave(str(error))
        except Exception:
            log.exception("rank %d: its orders cannot be received any more", self.agent.rank)
            self.leave("no orders")

    def leave(self, why: str) -> None:
        """The launcher has ended, and this rank ends with it."""
        log.error("rank %d ends: %s", self.agent.rank, why)
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
                self._released = max(self._released, order.step)
                self.changed.notify_all()
        elif isinstance(order, Order):
            self._pausing.ordered(order)
        elif isinstance(order, to_rank.Unprotected):
            log.warning("rank %d is not protected any more: %s", self.agent.rank, order.reason)
            self.act(Action.EXIT)
        else:
            self.orders.put(order)
        with self.changed:  # an interruption is in the state page before its order arrives
            self.changed.notify_all()

    def stop_handler(self) -> None:
        """From any thread."""
        try:
            self.handlers.call(handlers.STOP)
        except Exception:
            log.exception("rank %d: its stop handler failed", self.agent.rank)

    # -- steps -------------------------------------------------------------------------------------

    def begin_update(self) -> None:
        """Raises Stopped, RuntimeError."""
        self.updates.begin()

    def end_update(self, step: int) -> None:
        """Does not raise Stopped: MindSpore has to reset a flag of its own after this. Raises
        RuntimeError, ValueError."""
        self.updates.end(step)
        if not self.first_update_reported:
            self.first_update_reported = True
            self.agent.report(from_rank.StepCommitted, self.generation, step - 1)
        if self._elastic:
            self._elastic = False
            if self.agent.rank == 0 and (why := elastic.obstacle(self)):
                log.warning("elastic-training: not possible: %s", why)

    def pause(self, step: int) -> None:
        """Wait here while a pause before the next step is ordered. Raises Stopped."""
        if self.replacement:
            return
        self.settled = self.updates.step
        self._pausing.wait(step)
        slot.patience(PATIENCE)

    def set_replicas(self, groups: tuple[ReplicaGroup, ...]) -> None:
        self.groups = groups
        self.kinds = tuple(k for k, g in enumerate(groups) if self.agent.rank in g.ranks)
        loads = frameworks.loads_checkpoints()
        self.agent.report(from_rank.OptimizerReplicas, groups, loads)

    # -- faults ------------------------------------------------------------------------------------

    def report(self, state: ReportState, code: str = "", error: str = "") -> None:
        """Report why the training thread has left the training. `error`: what it raised."""
        step, text = self.updates.step, code or state.name
        with self.changed:
            self.reported = state
            self.uce = self.uce or state in (ReportState.RS_UCE, ReportState.RS_UCE_CORRUPTED)
            self.load = exceptions.load(state, error or code) or self.load
            if state is ReportState.RS_PREREPAIR_FINISH:
                self.prepared = True
            self.changed.notify_all()
        if state in REPORTS:
            fault, what = REPORTS[state]
            text = f"{what}: {code}" if code else what
            self.agent.report(from_rank.RankFaulted, step, fault, text)
        elif state in (ReportState.RS_RETRY, ReportState.RS_UCE_CORRUPTED):
            text = (error or text)[:300]
            self.agent.report(from_rank.RankFaulted, step, from_rank.MEMORY, text, 0, self.load)
        elif state in (ReportState.RS_INIT_FINISH, ReportState.RS_PREREPAIR_FINISH):
            if self.replacement and not self.ready:
                self.ready = True
                self.agent.report(from_rank.RankReady)
        elif state is ReportState.RS_UNKNOWN:
            self.agent.report(from_rank.RankRaised, step, text[:300])
        elif state is ReportState.RS_NORMAL and not self.interrupted:
            fault = from_rank.OTHER
            text = "it was stopped, and taskd had not ordered that"
            self.agent.report(from_rank.RankFaulted, step, fault, text)

    def explained(self, error: BaseException | None) -> bool:
        """Whether an interruption explains an exception of unknown cause: waits for it a moment
        where another rank's end may be the cause."""
        patience = UNEXPLAINED if frameworks.may_be_of_a_peer(error) else 0.0
        with self.changed:
            return self.changed.wait_for(lambda: self.interrupted, patience)

    def stay_for_dump(self, explained: bool) -> None:
        """Wait while another thread of this process saves a last checkpoint; afterwards the
        launcher ends the process. Returns at once for another strategy. `explained`: an
        interruption has come, and its order, which names the strategy, is about to."""
        with self.changed:
            patience = UNEXPLAINED if explained else 0.0
            self.changed.wait_for(lambda: self.repair_type != "unknown", patience)
            saving = self.repair_type == "dump"
        if saving:
            self.wait_for_action()

    def wait_for_action(self) -> Action:
        """Wait until the repair is done, or will not be."""
        slot.progress(self.updates.step, slot.INTERRUPTED)
        with self.changed:
            self.waiting = True
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.action is not None)
            action, self.action, self.waiting = self.action, None, False
        assert action is not None
        return action


# seconds that a step may take before the rank counts as hung: an evaluation between two updates
# cannot be told from a step
PATIENCE = 600

_current: Processor | None = None


def current() -> Processor | None:
    """This process's Processor, once tft_init_processor was called under taskd's agent."""
    return _current


def make(rank: int, world_size: int, zit: bool = False) -> None:
    """Make this process's Processor, if it runs under taskd's agent. `zit`: see Rank. Raises
    ValueError, OSError."""
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
    _current.zit = zit

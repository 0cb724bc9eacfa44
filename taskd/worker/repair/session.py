"""What a rank does from an interruption until it trains again: report, rebuild, restore, resume.

The rank's main thread executes the orders that the agent relays. An order that a newer interruption
has overtaken is dropped, and the next round's orders follow. All state is in place and its checksum
reported before any rank resumes.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from taskd import settings
from taskd.core.snapshots import FINAL
from taskd.cython_api import damage, slot
from taskd.devices import Device
from taskd.messages import from_rank, to_rank
from taskd.messages.values import Plan, Position
from taskd.records.store import Entries
from taskd.worker.communication import buckets, comm_hooks, transfer
from taskd.worker.communication.abort import Aborter
from taskd.worker.communication.channel import Channel
from taskd.worker.communication.pipelines import Pipelines
from taskd.worker.discovery.loop_variables import LoopVariables
from taskd.worker.repair import device_tasks, trials, verify
from taskd.worker.repair.communicators import Communicators
from taskd.worker.repair.outcomes import Continued, LeftAlone, Outcome, Released, Resumed, TakenUp
from taskd.worker.state import entry as records
from taskd.worker.state import fsdp2, replicas
from taskd.worker.state.copies import Copies
from taskd.worker.state.entry import Entry
from taskd.worker.state.gradients import Gradients
from taskd.worker.state.memory import checksum, put_tensors, scratch
from taskd.worker.state.random_state import RandomState
from taskd.worker.state.stripes import Stripes
from taskd.worker.state.training_state import TrainingState

log = logging.getLogger("taskd.worker")

# seconds; below the coordinator's deadline for the phase, so that the rank reports the reason
REBUILD_LIMIT = 15.0


@dataclass
class _Waits:
    """The arguments of one `wait_for_orders`, and what has been restored during it."""

    replacement: bool
    release: int | None
    on_formed: Callable[[], None] | None
    paused: bool
    entered: int  # number of the interruption in which its communicators were built
    restored: Resumed | None = None


@dataclass
class RepairSession:
    """The parts of a rank that a repair works on. `rank` and `incarnation` name this process in
    every message."""

    rank: int
    incarnation: int
    channel: Channel
    communicators: Communicators
    state: TrainingState
    stripes: Stripes | None
    entries: Entries
    copies: Copies
    random: RandomState
    gradients: Gradients
    device: Device
    pipelines: Pipelines
    variables: LoopVariables
    node: int = 0  # the lowest rank of this node
    built_at: int = 0  # number of the interruption in which the current communicators were built
    answered: int = 0  # number of the last interruption answered
    # the step that this rank's memory was restored to in the current incident
    clean: int | None = None
    damaged: int = 0  # memory pages lost by the last report
    accepted: int = 0  # how many of these a restore has repaired
    verifies: bool = False  # TASKD_VERIFY: compare what was restored (verify.py)
    aborter: Aborter | None = None  # for devices whose work has to be stopped
    # called with the step that memory is about to be restored to
    before_restore: Callable[[int], None] = lambda step: None
    # gives what this process knows of the start of a step that was not recorded whole
    start: Callable[[int], tuple[int, Entry] | None] = lambda step: None

    def wait_for_orders(
        self,
        position: Callable[[], tuple[Position, str]] | None,
        release: int | None = None,
        on_formed: Callable[[], None] | None = None,
        paused: bool = False,
    ) -> Outcome:
        """Execute orders until one ends the wait. `position`: gives this rank's position and why
        its process cannot go on ("": it can); None in a replacement, which has nothing to report.
        `release`: return Released once no step before this one will be repeated. `on_formed`:
        called once the first communicators exist. `paused`: paused on request, without a fault."""
        waits = _Waits(position is None, release, on_formed, paused, self.built_at)
        self._position = position
        self.clean, self.damaged = None, damage.damaged()
        self._answer(slot.interruption())
        while True:
            order = self.channel.receive()
            try:
                outcome = self._carry_out(order, waits)
            except Exception as error:  # reported; the coordinator decides what happens next
                self._failed(order, error)
                continue
            if outcome is not None:
                return outcome

    def _carry_out(self, order: Any, waits: _Waits) -> Outcome | None:
        if isinstance(order, to_rank.Rebuild | to_rank.Restore):
            newest = slot.interruption()
            if order.interruption < newest:  # overtaken before it began
                self._answer(newest)
                return None
        handler = HANDLERS.get(type(order))
        return handler(self, order, waits) if handler is not None else None

    def _failed(self, order: Any, error: Exception) -> None:
        generation, name = getattr(order, "generation", 0), type(order).__name__
        if slot.interruption() > self.built_at:
            text = "rank %d: %s of generation %d was overtaken by an interruption"
            log.info(text, self.rank, name, generation)
            self._answer(slot.interruption())
            return
        log.warning("rank %d: %s failed", self.rank, name, exc_info=error)
        reason = f"{type(error).__name__}: {error}"[:500]
        self._send(from_rank.RankFailed(self.rank, self.incarnation, generation, reason))

    # -- orders ------------------------------------------------------------------------------------

    def _interrupted(self, order: to_rank.Interrupt, waits: _Waits) -> None:
        self._answer(order.interruption)

    def _rebuilt(self, order: to_rank.Rebuild, waits: _Waits) -> None:
        self._rebuild(order)
        if waits.on_formed is not None:
            waits.on_formed()
        self._send(from_rank.RankRebuilt(self.rank, self.incarnation, order.generation))

    def _restored(self, order: to_rank.Restore, waits: _Waits) -> None:
        self.before_restore(order.plan.step)
        waits.restored = self._restore(order.plan)
        digest = self._digest()
        if damage.damaged() != self.damaged:
            raise RuntimeError("a memory page was lost while the state was restored")
        damage.accept(self.damaged)
        self.accepted = self.damaged
        self.clean = order.plan.step
        self._send(from_rank.RankRestored(self.rank, self.incarnation, order.generation, digest))

    def _resumed(self, order: to_rank.Resume, waits: _Waits) -> Resumed | None:
        if order.interruption != self.built_at:
            return None
        return waits.restored or Resumed(order.step, None, 0)

    def _recorded(self, order: to_rank.RecordState, waits: _Waits) -> None:
        # torch.distributed.checkpoint takes 0.2 s to import and is rarely needed
        from taskd.worker.repair import dumping

        dumping.record(self, order)
        self._send(from_rank.StateSaved(self.rank, self.incarnation, order.interruption, ()))

    def _saved(self, order: to_rank.SaveState, waits: _Waits) -> None:
        self._save(order)

    def _released(self, order: to_rank.Release, waits: _Waits) -> Released | None:
        over = waits.release is not None and order.step >= waits.release
        return Released(order.step) if over else None

    def _continued(
        self, order: to_rank.Pause | to_rank.Continue, waits: _Waits
    ) -> Continued | None:
        # otherwise a repair is under way, which ends with a Resume
        free = waits.paused and slot.interruption() <= waits.entered
        return Continued() if free else None

    def _task(self, order: to_rank.SwitchNics | to_rank.StressTest, waits: _Waits) -> None:
        if waits.paused and slot.interruption() <= waits.entered:
            results = device_tasks.carry_out(self.device, self.rank, order)
            if results:
                self._send(from_rank.TaskDone(self.rank, self.incarnation, order.task, results))

    def _taken_up(self, order: to_rank.TakeUp, waits: _Waits) -> TakenUp | None:
        return TakenUp() if waits.replacement else None

    def _unprotected(self, order: to_rank.Unprotected, waits: _Waits) -> LeftAlone:
        return LeftAlone(order.reason)

    def _rebuild(self, order: to_rank.Rebuild) -> None:
        resumed = order.same and self.device.resume_communicators()
        self.device.restart()
        self.built_at = order.interruption
        if resumed:
            self.communicators.generation = order.generation
            return
        self.device.leave_collectives()
        comm_hooks.leave()
        with scratch():
            self.communicators.rebuild(
                order.generation,
                *order.store,
                order.interruption,
                REBUILD_LIMIT,
                self.device.device,
            )

    def _save(self, order: to_rank.SaveState) -> None:
        """Save the state at the start of the step, from memory or from the node's stripes, and the
        parts of all ranks from their records."""
        from taskd.worker.repair import dumping

        try:
            if self.state.split:
                raise RuntimeError("the state of ZeroRedundancyOptimizer cannot be saved by dump")
            self.bring_back(order.step, order.stripes)
            work = Path(settings.dump_path(os.environ)) / order.name
            files = dumping.save(self.state, work, order)
            self._send(from_rank.StateSaved(self.rank, self.incarnation, order.interruption, files))
        except Exception as error:
            log.warning("rank %d: the state could not be saved", self.rank, exc_info=True)
            reason = f"{type(error).__name__}: {error}"[:500]
            self._send(from_rank.RankFailed(self.rank, self.incarnation, order.generation, reason))

    def bring_back(self, step: int, stripes: bool) -> tuple[int, Entry] | None:
        """Put the state at the start of `step` in memory, for a dump: what this rank's record has,
        and, with `stripes`, what those have. Returns kind and content of the record, None where it
        has none. Raises RuntimeError, OSError."""
        found = self.entries.read(step)
        entry = None if found is None else records.decode(found[1], self.entries.seal, step)
        if entry is not None:
            self.state.conform(entry.structure)
            put_tensors(entry, self.state)
            self.state.put_settings(entry.settings)
        if stripes:
            self._read_stripes(step)
        return None if found is None or entry is None else (found[0], entry)

    def _read_stripes(self, step: int) -> None:
        if self.stripes is None:
            raise RuntimeError("stripes are switched off on this node")
        self.stripes.read_all(step, self.state.replicated, self.state.replicas.local)

    def _send(self, message: Any) -> None:
        self.channel.send(message)

    def _answer(self, interruption: int) -> None:
        """Report this rank's position for interruption number `interruption`, once."""
        if interruption <= self.answered or interruption <= self.built_at:
            return
        self.answered = interruption
        if self.aborter is not None:
            self.aborter.wait(
                interruption
            )  # a late abort would hit the communicators that are built next
        if self._position is None:
            return
        lost, self.damaged = damage.damaged() != self.damaged, damage.damaged()
        at, unfit = self._position()
        self._stands = at.step
        if self._touched:
            clean = None if lost else self.clean
            at = at.but(clean=clean)
        self._send(from_rank.RankInterrupted(self.rank, self.incarnation, interruption, at, unfit))

    _stands: int = -1  # the last step reported
    # settings and random numbers have been restored from a record in the current incident
    _rewound: bool = False
    _touched: bool = False  # a restore of the current incident has written state in memory

    def attempt_failed(self) -> None:
        """Clear what the failed attempt has left in groups and wrappers."""
        self.communicators.attempt_failed()
        fsdp2.reset(self.state.modules.values())

    def settled(self) -> None:
        """End the incident for this rank: the restored state is its state."""
        # on every rank, also where no attempt failed: stages agree on shapes in their next step
        self.pipelines.reset(lambda: trials.unchanged(self.state, self.random))
        self._touched = self._rewound = False

    def _restore(self, plan: Plan) -> Resumed:
        kind, entry = self._record(plan)
        # code between two steps has run here and will not run again; an earlier record would undo
        # it. A process that has not begun the step takes only lost memory from the record
        before = (
            self._position is not None
            and kind != FINAL
            and plan.step == self._stands
            and not self._rewound
        )
        self._touched, self.clean = True, None
        if self.rank not in plan.keep:
            self.device.will_overwrite([*self.state.replicated, *self.state.private])
            self.state.conform(entry.structure)
        elif not before:
            self.state.conform_buffers(entry.structure)
        if self.rank in plan.stripes:
            self._read_stripes(plan.step)
        for destination, source in plan.copies:
            if self.rank == source:
                transfer.give(self.state.replicated, destination, self.place())
            elif self.rank == destination:
                transfer.take(self.state.replicated, source, self.place())
        self.device.synchronize()
        # skipped if code between the steps may have changed parameters since, or if this rank's
        # memory is in doubt
        if not before and self.entries.marked() != plan.step:
            replicas.check(self.state.replicated_rows, entry.mark, plan.step)
        if not before or damage.spoiled():
            put_tensors(entry, self.state)
        entry = replace(entry, orders=buckets.agreed(self.state.ddps, entry.orders, self.place()))
        with scratch():
            for ddp, order in zip(self.state.ddps, entry.orders, strict=True):
                buckets.rebuild(ddp, order)
        if not before or damage.spoiled():
            self.gradients.restore(entry.gradients, entry.skipped)
        if not before:
            buckets.put_synced(self.state.ddps, entry.synced)
            self.state.put_settings(entry.settings)
            self.random.put(entry.random)
            self._rewound = True
        self.entries.forget_after(plan.step)
        if self.stripes is not None:
            self.stripes.forget_after(plan.step)
        if self.verifies and not before:
            verify.memory(self, entry)
        # "steps below this one": a stale higher number would open a later step's gate too early
        slot.started(plan.step)
        return Resumed(plan.step, entry, kind, plan)

    def _record(self, plan: Plan) -> tuple[int, Entry]:
        """This rank's record of the plan's step, and its kind."""
        found = self.entries.view(plan.step)
        if found is not None:
            return found[0], records.decode(found[1], self.entries.seal, plan.step)
        start = self.start(plan.step)
        if start is None:
            raise RuntimeError(f"the record of step {plan.step} is gone or damaged")
        if self.rank not in plan.keep:
            raise RuntimeError(f"the state at step {plan.step} was not recorded whole")
        return start

    def place(self) -> torch.device:
        return self.state.replicated[0].device if self.state.replicated else torch.device("cpu")

    def _digest(self) -> str:
        """The checksum of the replicated state."""
        return checksum(self.state.replicated)


HANDLERS: dict[type, Callable[[RepairSession, Any, _Waits], Outcome | None]] = {
    to_rank.Interrupt: RepairSession._interrupted,
    to_rank.Rebuild: RepairSession._rebuilt,
    to_rank.Restore: RepairSession._restored,
    to_rank.Resume: RepairSession._resumed,
    to_rank.RecordState: RepairSession._recorded,
    to_rank.SaveState: RepairSession._saved,
    to_rank.Release: RepairSession._released,
    to_rank.Pause: RepairSession._continued,
    to_rank.SwitchNics: RepairSession._task,
    to_rank.StressTest: RepairSession._task,
    to_rank.Continue: RepairSession._continued,
    to_rank.TakeUp: RepairSession._taken_up,
    to_rank.Unprotected: RepairSession._unprotected,
}

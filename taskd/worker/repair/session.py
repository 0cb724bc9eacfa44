"""What a rank does from an interruption until it trains again: report, rebuild, restore, resume.

The rank's main thread executes the orders that the agent relays. An order overtaken by a newer
interruption is dropped; the next round's orders follow. Before any rank resumes, all state is in
place and its checksum reported.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taskd import settings
from taskd.cython_api import slot
from taskd.messages import from_rank, to_rank
from taskd.messages.values import Position
from taskd.worker.communication import comm_hooks
from taskd.worker.communication.abort import Aborter
from taskd.worker.communication.agent_client import AgentClient
from taskd.worker.discovery.reached import Reached
from taskd.worker.dump import snapshot
from taskd.worker.repair import device_tasks, trials
from taskd.worker.repair.beside import Beside
from taskd.worker.repair.outcomes import Continued, LeftAlone, Outcome, Released, Resumed, TakenUp
from taskd.worker.repair.protected_rank import ProtectedRank
from taskd.worker.repair.restore import Following, Restorer, for_dump
from taskd.worker.state import gathering
from taskd.worker.state.memory import scratch

log = logging.getLogger("taskd.worker")

# seconds; below the coordinator's deadline for the phase, so that the rank reports the reason
REBUILD_LIMIT = 15.0
# orders in which ranks need each other
TOGETHER = (to_rank.Rebuild, to_rank.Restore)


@dataclass
class _Waits:
    """The arguments of one `wait_for_orders`, and what has been restored during it."""

    loop: Following
    release: int | None
    on_formed: Callable[[str], None] | None
    paused: int | None
    entered: int  # number of the interruption in which its communicators were built
    restored: Resumed | None = None


@dataclass(kw_only=True)
class RepairSession(ProtectedRank):
    """A protected rank that carries out its agent's orders."""

    agent: AgentClient
    built_at: int = 0  # number of the interruption in which the current communicators were built
    answered: int = 0  # number of the last interruption answered
    aborter: Aborter | None = None  # for devices whose work has to be stopped
    unrecord: Callable[[], None] | None = None  # see dumping.record
    script: Reached | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.restorer = Restorer(self)
        self.beside = Beside(self.agent)

    def wait_for_orders(
        self,
        position: Callable[[], tuple[Position, str]] | None,
        loop: Following,
        release: int | None = None,
        on_formed: Callable[[str], None] | None = None,
        paused: int | None = None,
    ) -> Outcome:
        """Execute orders until one ends the wait. `position`: gives this rank's position and why
        its process cannot continue ("": it can); None in a replacement, which has nothing to
        report. `loop`: the script's. `release`: return Released once no step before this one will
        be repeated. `on_formed`: called once the first communicators exist, with the dump that all
        ranks begin from, "" for none. `paused`: before which step it is paused on request, without
        a fault."""
        waits = _Waits(loop, release, on_formed, paused, self.built_at)
        self._position = position
        self.restorer.begin()
        while True:
            self._answer(paused is not None)
            order = self.agent.channel.receive()
            handler = HANDLERS.get(type(order))
            if handler is None or (isinstance(order, TOGETHER) and self.agent.overtaken(order)):
                continue
            try:
                outcome = handler(self, order, waits)
            except Exception as error:
                self.agent.failed(order, error)
                continue
            if outcome is not None:
                return outcome

    # -- orders ------------------------------------------------------------------------------------

    def _rebuilt(self, order: to_rank.Rebuild, waits: _Waits) -> None:
        self._train_on()
        self._rebuild(order)
        if waits.on_formed is not None:
            waits.on_formed(order.dump)
        self.agent.report(from_rank.RankRebuilt, order.generation)

    def _restored(self, order: to_rank.Restore, waits: _Waits) -> None:
        waits.restored, digest = self.restorer.restore(order.plan, waits.loop)
        self.agent.report(from_rank.RankRestored, order.generation, digest)

    def _resumed(self, order: to_rank.Resume, waits: _Waits) -> Resumed | None:
        if order.interruption != self.built_at:
            return None
        return waits.restored or Resumed(order.step, None, 0)

    def _asked(self, order: to_rank.AskPosition, waits: _Waits) -> None:
        if self._position is not None and not self._called(waits):
            self.beside.drop()  # its memory first: no manager waits for an earlier one any more
            copies = not self.state.split and snapshot.fits(self.state)
            self.agent.report(from_rank.RankPosition, order.dump, waits.loop.holds(), copies)

    def _called(self, waits: _Waits) -> bool:
        """Whether an interruption has begun since the rank was paused."""
        return slot.interruption() > waits.entered

    def _recorded(self, order: to_rank.RecordState, waits: _Waits) -> None:
        # torch.distributed.checkpoint takes 0.2 s to import and is rarely needed
        from taskd.worker.repair import dumping

        if order.dump and self._called(waits):
            return
        self._train_on()
        self.unrecord = dumping.record(self, order)
        self.agent.report(from_rank.StateSaved, order.interruption, (), "", order.dump)

    def _copied(self, order: to_rank.CopyState, waits: _Waits) -> None:
        if not self._called(waits):
            self.beside.copy(order.dump, self.state)
            self.agent.report(from_rank.StateSaved, self.built_at, (), "", order.dump)

    def _saved(self, order: to_rank.SaveState, waits: _Waits) -> None:
        """Save the state at the start of the step, from memory or from the node's stripes, and the
        parts of all ranks from their records."""
        from taskd.worker.repair import dumping

        if order.dump and self._called(waits):
            return
        if self.state.split:
            raise RuntimeError("the state that ZeRO divides among ranks cannot be saved by dump")
        self.beside.drop()
        if not order.dump:
            for_dump(self, order.step, order.stripes)
        work = Path(settings.dump_path(os.environ)) / order.name
        files = dumping.save(snapshot.of(self.state), work, order)
        self.agent.report(from_rank.StateSaved, order.interruption, files, "", order.dump)

    def _train_on(self) -> None:
        """Undo what a dump has changed: the job goes on, or is saved once more."""
        if self.unrecord is not None:
            undo, self.unrecord = self.unrecord, None
            undo()

    def _released(self, order: to_rank.Release, waits: _Waits) -> Released | None:
        over = waits.release is not None and order.step >= waits.release
        return Released(order.step) if over else None

    def _continued(
        self, order: to_rank.Pause | to_rank.Continue, waits: _Waits
    ) -> Continued | None:
        # otherwise a repair is under way, which ends with a Resume
        if self._called(waits):
            return None
        if self.unrecord is not None and isinstance(order, to_rank.Pause):
            # said again, while what a dump takes from the record is not taken yet
            if waits.paused is not None and order.step <= waits.paused:
                self.agent.report(from_rank.RankPaused, waits.paused)
            return None
        try:
            self._train_on()
        except OSError:
            log.warning("rank %d: its record could not be written again", self.rank, exc_info=True)
        return Continued() if waits.paused is not None else None

    def _task(self, order: to_rank.SwitchNics | to_rank.StressTest, waits: _Waits) -> None:
        if waits.paused is not None and not self._called(waits):
            device_tasks.carry_out(self.agent, self.device, order)

    def _taken_up(self, order: to_rank.TakeUp, waits: _Waits) -> TakenUp | None:
        return TakenUp() if self._position is None else None

    def _unprotected(self, order: to_rank.Unprotected, waits: _Waits) -> LeftAlone:
        return LeftAlone(order.reason)

    def _rebuild(self, order: to_rank.Rebuild) -> None:
        stand_ins = dict(order.stand_ins)
        same = order.same and stand_ins == self.stand_ins
        if self.aborter is not None:
            self.aborter.armed = True
            if slot.interruption() > order.interruption:
                raise RuntimeError("overtaken by a newer interruption")
        resumed = same and self.device.resume_communicators()
        if slot.interruption() <= self.built_at:
            # nothing has been aborted, and nothing is to be cut: DDP's constructor may still send
            self.device.synchronize()
        self.device.restart()
        self.built_at, self.stand_ins = order.interruption, stand_ins
        gathering.built(order.interruption, self.device.device)
        if resumed:
            self.communicators.resumed(order.generation)
            return
        self.device.leave_collectives()
        comm_hooks.leave()
        with scratch():
            built = order.generation, *order.store, order.interruption
            self.communicators.rebuild(
                *built, REBUILD_LIMIT, self.device.device, away=frozenset(stand_ins)
            )

    def _answer(self, paused: bool) -> None:
        """Report this rank's position for the last interruption, once. `paused`: it has waited for
        the end of a pause, and now for that of the repair."""
        interruption = slot.interruption()
        if interruption <= self.answered or interruption <= self.built_at:
            return
        if self.aborter is not None:
            # a late abort would hit the communicators that are built next
            self.aborter.wait(interruption)
        if self._position is None:  # but if it may resume first, its position will be asked for
            return
        self.answered = interruption
        at, unfit = self.restorer.report(self._position)
        if paused:
            slot.progress(at.step, slot.INTERRUPTED)
        self.agent.report(from_rank.RankInterrupted, interruption, at, unfit)

    def attempt_failed(self) -> None:
        """Clear leftovers of the failed attempt in groups and wrappers."""
        self.communicators.attempt_failed()
        self.state.attempt_failed()

    def settled(self) -> None:
        """End the incident for this rank: the restored state is its state."""
        # on every rank, also where no attempt failed: stages agree on shapes in their next step
        self.pipelines.reset(lambda: trials.unchanged(self.state, self.random))
        self.restorer.settled()


HANDLERS: dict[type, Callable[[RepairSession, Any, _Waits], Outcome | None]] = {
    to_rank.Rebuild: RepairSession._rebuilt,
    to_rank.Restore: RepairSession._restored,
    to_rank.Resume: RepairSession._resumed,
    to_rank.AskPosition: RepairSession._asked,
    to_rank.RecordState: RepairSession._recorded,
    to_rank.CopyState: RepairSession._copied,
    to_rank.SaveState: RepairSession._saved,
    to_rank.Release: RepairSession._released,
    to_rank.Pause: RepairSession._continued,
    to_rank.SwitchNics: RepairSession._task,
    to_rank.StressTest: RepairSession._task,
    to_rank.Continue: RepairSession._continued,
    to_rank.TakeUp: RepairSession._taken_up,
    to_rank.Unprotected: RepairSession._unprotected,
}

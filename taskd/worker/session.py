"""What a rank does between the moment it is interrupted and the moment it trains on: report,
rebuild, restore, resume.

The rank's main thread carries it out, order by order, as the agent relays them. An order that a
newer interruption has overtaken is dropped: the ranks start over with the next round's orders.
State is put in place whole and its checksum reported before anybody resumes.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from taskd import settings
from taskd.core.snapshots import FINAL
from taskd.cython_api import allocations, damage, memory, slot
from taskd.devices import Device
from taskd.messages import from_rank, to_rank
from taskd.messages.values import Plan, Position
from taskd.records.store import Entries
from taskd.worker import buckets, replicas, verify
from taskd.worker import entry as records
from taskd.worker.abort import Aborter
from taskd.worker.channel import Channel
from taskd.worker.communicators import Communicators
from taskd.worker.copies import Copies
from taskd.worker.gradients import Gradients
from taskd.worker.outcomes import Continued, LeftAlone, Outcome, Released, Resumed, TakenUp
from taskd.worker.random_state import RandomState
from taskd.worker.state import TrainingState
from taskd.worker.stripes import Stripes
from taskd.worker.verify import scatter

log = logging.getLogger("taskd.worker")

# seconds; below the coordinator's own deadline for the phase, so that the reason comes from here
REBUILD_LIMIT = 15.0
CHUNK = 8 << 20  # bytes; 4-16 MiB pieces are fastest over gloo (docs/design.md)


@dataclass
class _Waits:
    """What a rank waits for; see `wait_for_orders`."""

    replacement: bool
    release: int | None
    on_formed: Callable[[], None] | None
    paused: bool
    entered: int  # number of the interruption that its communicators were built in
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
    built_at: int = 0  # number of the interruption that the present communicators were built in
    answered: int = 0  # number of the last interruption that was reported
    # a step that this rank's memory was brought to in the present incident
    clean: int | None = None
    damaged: int = 0  # memory pages lost up to the last report
    accepted: int = 0  # of these, how many have been made good by a restore
    verifies: bool = False  # TASKD_VERIFY: compare what was restored, see verify.py
    aborter: Aborter | None = None  # for devices whose work does not end by itself

    def wait_for_orders(
        self,
        position: Callable[[], tuple[Position, str]] | None,
        release: int | None = None,
        on_formed: Callable[[], None] | None = None,
        paused: bool = False,
    ) -> Outcome:
        """Carry out orders until told to go on. `position`: where this rank stands, and why its
        process cannot go on ("": it can); None in a replacement, which has nothing to report.
        `release`: return Released once no step before this one will be repeated. `on_formed`:
        called when the first communicators stand. `paused`: paused on request, without a
        fault."""
        waits = _Waits(position is None, release, on_formed, paused, self.built_at)
        self._position = position
        self.clean, self.damaged = None, damage.damaged()
        self._answer(slot.interruption())
        while True:
            order = self.channel.receive()
            try:
                outcome = self._carry_out(order, waits)
            except Exception as error:  # it is reported; the coordinator decides what next
                self._failed(order, error)
                continue
            if outcome is not None:
                return outcome

    def _carry_out(self, order: Any, waits: _Waits) -> Outcome | None:
        if isinstance(order, to_rank.Rebuild | to_rank.Restore):
            newest = slot.interruption()
            if order.interruption < newest:  # overtaken before it was begun
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

    def _saved(self, order: to_rank.SaveState, waits: _Waits) -> None:
        self._save(order)

    def _released(self, order: to_rank.Release, waits: _Waits) -> Released | None:
        over = waits.release is not None and order.step >= waits.release
        return Released(order.step) if over else None

    def _continued(
        self, order: to_rank.Pause | to_rank.Continue, waits: _Waits
    ) -> Continued | None:
        # else a repair is under way, and it ends with a Resume
        free = waits.paused and slot.interruption() <= waits.entered
        return Continued() if free else None

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
        with scratch():
            self.communicators.rebuild(
                order.generation,
                *order.store,
                order.interruption,
                REBUILD_LIMIT,
                self.device.device,
            )

    def _save(self, order: to_rank.SaveState) -> None:
        """Write the state at the start of the step, which this rank has or can read from its node's
        stripes."""
        # torch.distributed.checkpoint takes 0.2 s to import, and is hardly ever needed
        from taskd.worker import dumping

        try:
            found = self.entries.read(order.step)
            if order.stripes:
                if self.stripes is None:
                    raise RuntimeError("stripes are switched off on this node")
                self.stripes.read_all(order.step, self.state.replicated)
            if found is not None:
                self.state.put_settings(
                    records.decode(found[1], self.entries.seal, order.step).settings
                )
            work = Path(settings.dump_path(os.environ)) / order.name
            files = dumping.save(self.state, work)
            self._send(from_rank.StateSaved(self.rank, self.incarnation, order.interruption, files))
        except Exception as error:
            log.warning("rank %d: the state could not be saved", self.rank, exc_info=True)
            reason = f"{type(error).__name__}: {error}"[:500]
            self._send(from_rank.RankFailed(self.rank, self.incarnation, order.generation, reason))

    def _send(self, message: Any) -> None:
        self.channel.send(message)

    def _answer(self, interruption: int) -> None:
        """Report where this rank stands for interruption number `interruption`, once."""
        if interruption <= self.answered or interruption <= self.built_at:
            return
        self.answered = interruption
        if self.aborter is not None:
            self.aborter.wait(
                interruption
            )  # a late one would hit the communicators that are built next
        if self._position is None:
            return
        lost, self.damaged = damage.damaged() != self.damaged, damage.damaged()
        at, unfit = self._position()
        self._stands = at.step
        if self._touched:
            clean = None if lost else self.clean
            at = at.but(clean=clean)
        self._send(from_rank.RankInterrupted(self.rank, self.incarnation, interruption, at, unfit))

    _stands: int = -1  # the step that was reported last
    # settings and random numbers have been taken from a record in the present incident
    _rewound: bool = False
    _touched: bool = False  # state in memory has been written by a restore of the present incident

    def settled(self) -> None:
        """The incident is over for this rank: what it has restored is its state."""
        self._touched = self._rewound = False

    def _restore(self, plan: Plan) -> Resumed:
        found = self.entries.read(plan.step)
        if found is None:
            raise RuntimeError(f"the record of step {plan.step} is gone or damaged")
        kind, payload = found
        entry = records.decode(payload, self.entries.seal, plan.step)
        # what stands between two steps has been run here and will not be again: a record from
        # before it would undo that. Of a process that had not begun the step, only what was lost is
        # taken from the record
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
            if self.stripes is None:
                raise RuntimeError("stripes are switched off on this node")
            self.stripes.read_all(plan.step, self.state.replicated)
        for destination, source in plan.copies:
            if self.rank == source:
                self._give(destination)
            elif self.rank == destination:
                self._take(source)
        self.device.synchronize()
        # not where code between the steps may have changed parameters since, or where this rank's
        # memory is what is doubted
        if not before and self.entries.marked() != plan.step:
            replicas.check(self.state.replicated_rows, entry.mark, plan.step)
        if not before or damage.spoiled():
            scatter(entry.private, self.state.private)
        entry = replace(entry, orders=buckets.agreed(entry.orders, self.place()))
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
        # "steps below this one": a stale, higher number would open the gate of a later step too
        # early
        slot.started(plan.step)
        return Resumed(plan.step, entry, kind, plan)

    def _give(self, destination: int) -> None:
        damaged = damage.damaged()
        for pieces in _chunks(self.state.replicated):
            dist.send(torch.cat(pieces), destination)
        # a page that failed unnoticed until it was read here is zeros over there: without this word
        # the other would count them as the state, and be believed in the next round
        dist.send(
            torch.tensor([damage.damaged() != damaged], dtype=torch.uint8, device=self.place()),
            destination,
        )

    def place(self) -> torch.device:
        return self.state.replicated[0].device if self.state.replicated else torch.device("cpu")

    def _take(self, source: int) -> None:
        for pieces in _chunks(self.state.replicated):
            buffer = torch.empty(
                sum(p.numel() for p in pieces), dtype=torch.uint8, device=pieces[0].device
            )
            dist.recv(buffer, source)
            torch._foreach_copy_(pieces, list(buffer.split([p.numel() for p in pieces])))
        lost = torch.ones(1, dtype=torch.uint8, device=self.place())
        dist.recv(lost, source)
        if lost:
            raise RuntimeError(f"rank {source} lost a memory page while it gave its state")

    def _digest(self) -> str:
        """Checksum of the replicated state."""
        return digest(self.state.replicated)


@contextmanager
def scratch() -> Iterator[None]:
    """What is allocated in here is made anew by every repair: a lost page of it is no loss."""
    allocations.scratch(True)
    try:
        yield
    finally:
        allocations.scratch(False)


def digest(tensors: list[torch.Tensor]) -> str:
    value = 0
    for row in tensors:
        host = row if row.device.type == "cpu" else row.cpu()
        value = memory.checksum(host.data_ptr(), host.numel(), value)
    return f"{value:016x}"


def _chunks(rows: list[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Views of the rows, in order, in lists of at most CHUNK bytes."""
    pieces: list[torch.Tensor] = []
    room = CHUNK
    for row in rows:
        at = 0
        while at < row.numel():
            take = min(room, row.numel() - at)
            pieces.append(row[at : at + take])
            at, room = at + take, room - take
            if room == 0:
                yield pieces
                pieces, room = [], CHUNK
    if pieces:
        yield pieces


HANDLERS: dict[type, Callable[[RepairSession, Any, _Waits], Outcome | None]] = {
    to_rank.Interrupt: RepairSession._interrupted,
    to_rank.Rebuild: RepairSession._rebuilt,
    to_rank.Restore: RepairSession._restored,
    to_rank.Resume: RepairSession._resumed,
    to_rank.SaveState: RepairSession._saved,
    to_rank.Release: RepairSession._released,
    to_rank.Pause: RepairSession._continued,
    to_rank.Continue: RepairSession._continued,
    to_rank.TakeUp: RepairSession._taken_up,
    to_rank.Unprotected: RepairSession._unprotected,
}

"""Puts a rank's state back to the start of a step.

The private state comes from the rank's own record; the replicated state stays in memory, or comes
from the node's stripes, a replica or a dump, according to the manager's plan.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from taskd.core.job.snapshots import FINAL
from taskd.cython_api import damage, slot
from taskd.messages.values import Plan, Position
from taskd.worker.communication import transfer
from taskd.worker.repair import verify
from taskd.worker.repair.outcomes import Resumed
from taskd.worker.repair.protected_rank import ProtectedRank
from taskd.worker.state import entry as records
from taskd.worker.state import gathering, replicas
from taskd.worker.state.entry import Entry
from taskd.worker.state.memory import checksum
from taskd.worker.state.part import TENSORS, VALUES


class Following(Protocol):
    """The script's loop, while memory is put back under it."""

    def restoring(self, step: int) -> None:
        """Memory is about to be put back to the start of `step`."""

    def restored(self) -> None:
        """It has been."""

    def holds(self) -> Position:
        """What the rank has while it is paused."""


class Restorer:
    """Carries out a rank's part of the manager's plans, and tracks the state of its memory.
    `accepted`: how many lost memory pages have been repaired."""

    def __init__(self, rank: ProtectedRank) -> None:
        self._rank = rank
        self.accepted = 0
        self.stood_in: dict[int, int] = {}  # stand_ins when the last incident had ended
        self._clean: int | None = None  # memory was restored to this step in the current incident
        self._damaged = 0  # memory pages lost by the last report
        self.doubted: int | None = None  # see Plan, of the last one
        self._stands = -1  # the last step reported
        # settings and random numbers have been restored from a record in the current incident
        self._rewound = False
        self._touched = False  # a restore of the current incident has written state in memory

    def begin(self) -> None:
        self._clean, self._damaged = None, damage.damaged()

    def settled(self) -> None:
        """The incident has ended: the restored state is the rank's state."""
        self._touched = self._rewound = False
        self.stood_in = dict(self._rank.stand_ins)

    def report(self, position: Callable[[], tuple[Position, str]]) -> tuple[Position, str]:
        """The result of `position` for the manager, with the step that memory was restored to."""
        lost, self._damaged = damage.damaged() != self._damaged, damage.damaged()
        at, unfit = position()
        self._stands = at.step
        if self._touched:
            at = at.but(clean=None if lost else self._clean)
        return at, unfit

    def restore(self, plan: Plan, loop: Following) -> tuple[Resumed, str]:
        """Put the state of the plan's step in place; also returns the checksum of the replicated
        state. Raises RuntimeError, and what collectives raise."""
        loop.restoring(plan.step)
        self.doubted = plan.doubted
        resumed = self._restore(plan)
        loop.restored()
        # "steps below this one": a stale higher number would open a later step's gate too early
        slot.started(plan.step)
        digest = checksum(self._rank.state.replicated)
        if damage.damaged() != self._damaged:
            raise RuntimeError("a memory page was lost while the state was restored")
        damage.accept(self._damaged)
        self.accepted = self._damaged
        self._clean = plan.step
        return resumed, digest

    def _restore(self, plan: Plan) -> Resumed:
        rank, state = self._rank, self._rank.state
        kind, entry = self._record(plan)
        away = rank.standing.find(plan.step, entry.nested)
        # code between two steps has run here and will not run again; an earlier record would undo
        # it. A process that has not begun the step restores only lost memory from the record
        before = kind != FINAL and plan.step == self._stands and not self._rewound
        self._touched, self._clean = True, None
        if rank.rank not in plan.keep:
            rank.device.will_overwrite([*state.replicated, *state.private])
            state.conform(entry.structure)
        elif not before:
            state.conform_buffers(entry.structure)
        if rank.rank in plan.stripes:
            _read_stripes(rank, plan.step)
        for destination, source in plan.copies:
            if rank.rank == source:
                transfer.give(state.replicated, destination, rank.place())
            elif rank.rank == destination:
                transfer.receive(state.replicated, source, rank.place())
        rank.device.synchronize()
        gathering.whole(rank.device.device)
        # skipped if code between the steps may have changed parameters since, or if this rank's
        # memory is in doubt
        if not before and rank.entries.marked() != plan.step:
            replicas.check(state.replicated_rows, entry.mark, plan.step)
        rank.lay_out_buckets(entry)
        if put := not before or damage.spoiled() != 0:
            rank.put(entry, only_memory=before)
        self._rewound |= not before
        rank.entries.forget_after(plan.step)
        if rank.stripes is not None:
            rank.stripes.forget_after(plan.step)
        if rank.verifies and not before:
            verify.memory(rank, entry)
        rank.standing.take_up(plan.step, away, kind, entry, rewound=put)
        return Resumed(plan.step, entry, kind, plan)

    def _record(self, plan: Plan) -> tuple[int, Entry]:
        """This rank's record of the plan's step, and its kind."""
        rank = self._rank
        found = rank.entries.view(plan.step)
        if found is not None:
            return found[0], records.decode(found[1], rank.entries.seal, plan.step)
        start = rank.start(plan.step)
        if start is None:
            raise RuntimeError(f"the record of step {plan.step} is gone or damaged")
        if rank.rank not in plan.keep:
            raise RuntimeError(f"the state at step {plan.step} was not recorded whole")
        return start


def from_dump(rank: ProtectedRank, step: int, kind: int, entry: Entry) -> Resumed:
    """Put the rank's private state back from its record in a dump whose replicated state is in
    memory."""
    rank.lay_out_buckets(entry)
    rank.gradients.watch(rank.state.parameters())
    rank.put(entry)
    return Resumed(step, entry, kind)


def for_dump(rank: ProtectedRank, step: int, stripes: bool) -> tuple[int, Entry] | None:
    """Put the state at the start of `step` in memory for a dump: from this rank's record and, with
    `stripes`, from the stripes. Returns kind and content of the record, None if there is none.
    Raises RuntimeError, OSError."""
    found = rank.entries.read(step)
    entry = None if found is None else records.decode(found[1], rank.entries.seal, step)
    if entry is not None:
        rank.state.conform(entry.structure)
        rank.state.parts.put(entry.parts, only=lambda part: part.order in (TENSORS, VALUES))
    if stripes:
        _read_stripes(rank, step)
    return None if found is None or entry is None else (found[0], entry)


def _read_stripes(rank: ProtectedRank, step: int) -> None:
    if rank.stripes is None:
        raise RuntimeError("stripes are switched off on this node")
    rank.stripes.read_all(step, rank.state.replicated, rank.state.replicas.local)

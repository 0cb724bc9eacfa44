"""A rank that stands in for others that are away: it also computes their shares of each step.

A share is what one rank computes of a step before its gradients are averaged. The script goes
through them by job.shares: in ascending order of rank, each with its rank's private state in place.
What comes after them (the update, and what follows it) is run once, as this rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from taskd.records import nested
from taskd.records.store import Entries
from taskd.worker.elastic import records
from taskd.worker.elastic.away import Away, Small
from taskd.worker.elastic.in_memory import InMemory
from taskd.worker.elastic.records import Found
from taskd.worker.elastic.sums import Sums, add_waiting
from taskd.worker.elastic.synchronization import Synchronization
from taskd.worker.elastic.untouched import Untouched
from taskd.worker.state import fsdp2, gradients
from taskd.worker.state.entry import Entry
from taskd.worker.state.given import WouldDiverge
from taskd.worker.state.memory import scatter
from taskd.worker.state.part import Content
from taskd.worker.state.training_state import TrainingState

REMEDY = "loop over job.steps, and in each step over job.shares(step)"
BATCHES = "job.batches hands out the batches of this rank alone; no other rank can read its loader"


class Carrier(Protocol):
    """The rank that stands in: see repair/protected_rank.py."""

    rank: int
    state: TrainingState
    entries: Entries
    stand_ins: dict[int, int]


class Standing:
    """What this rank carries on for others: `mine`, by rank."""

    def __init__(self, carrier: Carrier) -> None:
        self._carrier = carrier
        self.mine: dict[int, Away] = {}
        self._memory, self._untouched = InMemory(carrier), Untouched(carrier.state)
        self._made: tuple[Synchronization, Sums] | None = None  # once the job is shrunk
        self._order: list[Away | None] = []  # of the shares; None: this rank's own
        self._present: list[Small] = []  # the state of each
        self._at = -1  # the share that is being computed
        self._home = True  # this rank's own state is in memory
        self._done = 0  # shares computed since the loop over them began
        self._open = self._begun = self._updated = False
        self._added = -1  # the step whose waiting gradients have been added to ours

    @property
    def shrunk(self) -> bool:
        """Whether ranks of this job are away; shrunk alike on every rank."""
        return bool(self._carrier.stand_ins)

    def computes(self) -> int:
        """The rank whose share is computed at present, or this rank."""
        away = self._order[self._at] if self._at >= 0 else None
        return away.rank if away is not None else self._carrier.rank

    # -- taking others up --------------------------------------------------------------------------

    def find(self, step: int, inside: bytes) -> dict[int, Found]:
        """The record for `step` of each rank that this one stands in for. `inside`: those nested in
        our own record. Raises RuntimeError if one is missing."""
        carrier = self._carrier
        wanted = sorted(r for r, by in carrier.stand_ins.items() if by == carrier.rank)
        return records.find(carrier.entries, wanted, step, inside)

    def take_up(
        self,
        step: int,
        found: dict[int, Found],
        kind: int,
        own: Entry,
        rewound: bool,
    ) -> None:
        """Carry on the ranks of `found`, and no others, from the start of `step`. `kind`, `own`:
        our own record; `rewound`: our memory has been restored from it. Raises RuntimeError."""
        carrier = self._carrier
        self._at, self._open, self._home = -1, False, True
        for rank in [r for r in self.mine if r not in found]:
            del self.mine[rank]
        for rank, (theirs, entry) in found.items():
            away = self.mine.get(rank)
            fresh = theirs is not None or away is None
            if away is None:
                away = Away(rank, carrier.state, carrier.entries.seal)
                self.mine[rank] = away
            away.take_up(kind if theirs is None else theirs, entry, own, fresh)
        ranks: list[Away | None] = [None, *self.mine.values()]
        self._order = sorted(ranks, key=lambda a: carrier.rank if a is None else a.rank)
        self._install()
        self._untouched.taken_up()
        if rewound:
            self._added = -1
        averaged = add_waiting(
            list(carrier.state.parameters()),
            gradients.read(own.parts["gradients"])[0],
            [gradients.read(entry.parts["gradients"])[0] for _, entry in found.values()],
            add=self._added != step,
        )
        self._added = step
        if self._made is not None:
            self._made[1].averaged = averaged

    def remove(self) -> None:
        """Leave torch's objects as they are in a full job."""
        if self._made is not None:
            self._made[0].remove()
            self._made[1].remove()
        self._made = None

    def _install(self) -> None:
        """Have torch's wrappers work in a shrunk job, or as ever in a full one."""
        state = self._carrier.state
        self.remove()
        if not self.shrunk:
            return
        synchronization = Synchronization(state.ddps, state.modules)
        sums = Sums(state.ddps, synchronization)
        synchronization.install(self._carrier.rank, self._carrier.stand_ins, self._borrowed)
        self._made = synchronization, sums
        if self.mine:
            synchronization.heard = sums.heard

    @contextmanager
    def _borrowed(self, rank: int) -> Iterator[None]:
        """Inside, the buffers of a rank that is away are in place."""
        rows, ours = self._carrier.state.buffers, self._memory.gathered()
        own = self.mine[rank].own.get("buffers")
        scatter(own.now(ours) if own is not None else ours, rows)
        try:
            yield
        finally:
            scatter(ours, rows)

    # -- records -----------------------------------------------------------------------------------

    def nested(self, step: int, kind: int, own: Entry) -> bytes:
        """The records of the ranks that this one stands in for, for our own record `own`."""
        if not self.mine or self._made is None:
            return b""
        averaged = self._made[1].averaged
        return nested.pack(
            {rank: away.record(step, kind, own, averaged) for rank, away in self.mine.items()}
        )

    def committed(self, left: Content) -> None:
        """An attempt was committed; `left`: the gradients that wait."""
        if self.mine and self._made is not None:
            self._made[1].committed(left)

    # -- passes ------------------------------------------------------------------------------------

    def pass_begins(self, loads: bool, number: int, before: bytes) -> None:
        """This rank is in pass `number`; so are the others from now on. `loads`: it is over
        job.batches; `before`: our generators' states when it began. Raises WouldDiverge."""
        if loads and self.shrunk:
            raise WouldDiverge(f"elastic-training: {BATCHES}: {REMEDY}")
        for away in self.mine.values():
            away.pass_begins(number, before)

    def joins_pass(self, number: int, before: bytes) -> None:
        """The same for ranks that have just been taken up in the middle of our pass."""
        for away in self.mine.values():
            if away.behind:
                away.pass_begins(number, before)

    # -- the shares of an attempt ------------------------------------------------------------------

    def begin(self) -> None:
        """An attempt begins."""
        self._at, self._done, self._begun, self._updated = -1, 0, False, False
        if not self.mine or self._made is None:
            return
        synchronization, sums = self._made
        modules = self._carrier.state.modules.values()
        sums.watch(self._carrier.state.parameters(), fsdp2.managed(modules))
        synchronization.begin()
        sums.begin(len(self._order))
        self._untouched.begin()
        self._open = True

    def again(self) -> None:
        """The loop over job.shares begins: everything is as this rank has it now."""
        assert self._made is not None
        self._memory.begin()
        self._untouched.again()
        ours = self._memory.take()
        self._present = [ours if a is None else a.now(ours) for a in self._order]
        self._made[0].begin()
        self._done, self._begun = 0, True

    @property
    def count(self) -> int:
        """How many shares this rank computes of a step."""
        return len(self._order)

    def enter(self, number: int) -> None:
        """Begin the share of that number."""
        assert self._made is not None
        last = number == len(self._order) - 1
        self._home = False
        self._memory.put(self._present[number])
        self._made[0].share(number == 0, last)
        self._made[1].share(last)
        self._untouched.share()
        self._at = number

    def leave(self) -> None:
        """The present share has been computed; after the last one this rank is itself again."""
        assert self._made is not None
        self._untouched.check()
        self._present[self._at] = self._memory.take()
        self._done = self._at + 1
        self._pause()
        if self._done < len(self._order):
            return
        ours = self._present[self._order.index(None)]
        for away, present in zip(self._order, self._present, strict=True):
            if away is not None:
                away.settle(ours, present)
        self._return()

    def updates(self) -> None:
        """The parameters are about to change. Raises WouldDiverge."""
        self._updated = True
        if self._open and (self._at >= 0 or self._done < len(self._order)):
            raise WouldDiverge(
                "elastic-training: parameters are updated before the loop over job.shares(step) is"
                " over, so the shares of ranks that are away would be left out: go through the"
                " whole loop, and call optimizer.step() after it"
            )

    def ended(self, error: BaseException | None) -> None:
        """The attempt's body has ended, with `error`. Raises WouldDiverge."""
        if not self._open:
            return
        left = self._begun and self._done < len(self._order)
        if error is not None or left:
            self.abandon()
        if error is None and left:
            raise WouldDiverge(
                "elastic-training: the loop over job.shares(step) was left before its last share"
            )
        waits = error is None and not self._updated
        changed = waits and self._made is not None and self._made[1].changed()
        self.over()
        if changed:
            raise WouldDiverge(
                "elastic-training: gradients that wait for a later step were changed (clipped,"
                " scaled) before they are averaged: each rank would do that to its own, here it"
                " would be done to a sum: do it in the step that updates"
            )

    def over(self) -> None:
        """The attempt has ended."""
        self._open = False
        if self._made is not None:
            self._made[1].over()

    def abandon(self) -> None:
        """Leave the attempt where it is: this rank is itself again."""
        self.stop()
        self.over()

    def stop(self) -> None:
        """Leave the loop over shares where it is."""
        if self._at >= 0:
            self._pause()
        if not self._home:
            # FSDP's parameters are others inside a forward that was interrupted
            self._return(whole=False)

    def _return(self, whole: bool = True) -> None:
        self._memory.put(self._present[self._order.index(None)], whole)
        self._home = True

    def _pause(self) -> None:
        assert self._made is not None
        self._made[0].over()
        self._made[1].ended()
        self._at = -1

"""What a rank records, and when: at the start of an attempt, at its end, and where it waits for the
others.

At the start of an attempt the private state is recorded as final and this rank's stripe of the
replicated state copied; at its end (commit) the private state again, provisionally: code between
two steps may still change it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import torch

from taskd.core.snapshots import FINAL, PASS_END, PAUSED, PROVISIONAL, drifting
from taskd.cython_api import damage, slot
from taskd.worker import buckets, plain, reach, replicas
from taskd.worker import entry as entries
from taskd.worker.batches import Batches
from taskd.worker.draws import Draws
from taskd.worker.entry import Entry
from taskd.worker.gradients import NOTHING, Left, Row
from taskd.worker.parallel import sharded
from taskd.worker.session import RepairSession
from taskd.worker.verify import gather

log = logging.getLogger("taskd.worker")

# random numbers' states, settings, private state, synced buffers, mark of the replicated state,
# places of job.iterate
Own = tuple[Any, ...]


class Recorder:
    """`pass_number`: how many times steps() or batches() has been gone through; `index`: batches
    handed out in this pass; `pass_random` and `loader_place`: random numbers' states and the
    loader's counters when the pass began. `draws`: the iterators of job.iterate; `calls`: the loop
    calls job.call."""

    def __init__(self, session: RepairSession, batches: Batches) -> None:
        self._session, self._batches = session, batches
        self.draws = Draws(session.random, session.communicators.aside)
        self.calls = False
        # step, and what code before it, but after the last commit, has changed, as it was
        self._committed = (-1, b"")
        self.pass_number = self.index = 0
        self.pass_random = self.loader_place = b""
        # steps whose start is not what was recorded at the commit before
        self.drifted: set[int] = set()
        self._structure = session.state.structure()
        # per DDP, see buckets.py
        self._orders: list[list[int] | None] = [None] * len(session.state.ddps)
        self._ready = [buckets.ReadyOrder(ddp) for ddp in session.state.ddps]
        self._versions = b""
        self._private = b""  # what was gathered last
        self._mark = 0  # of the replicated state; see replicas.py
        self._last: Own = ()  # what was recorded at the last commit
        self._left: Left = NOTHING  # gradients, likewise
        session.gradients.watch(session.state.parameters())

    # -- when --------------------------------------------------------------------------------------

    def formed(self) -> None:
        """All ranks have met for the first time, and what differs between them is known: the start
        is kept."""
        random = self._session.random.take()
        self._structure = self._session.state.structure()
        self.pass_number = -1
        self._write(0, PASS_END, self._own(random, 0), random, None, self._session.gradients.now())
        self.pass_number = 0

    def new_pass(self, random: bytes, loader_place: bytes) -> None:
        self.index, self.pass_random, self.loader_place = 0, random, loader_place

    def begin(self, step: int, before: bytes, after: bytes) -> bool:
        """`step` begins; False when its record cannot be trusted. `before` and `after`: the random
        numbers' states around the fetching of its batch, the same where there is none."""
        session = self._session
        self._refresh()
        self.draws.attempt_begins(step)
        record = self._own(before, step)
        left = session.gradients.now()
        if damage.spoiled():
            return False
        same = record == self._last and left.same(self._left)
        self._note_drift(step, same)
        if (
            same
            and after == before
            and self._batches.fingerprint(step) is None
            and session.entries.has(step, PROVISIONAL)
        ):
            session.entries.promote(step)
        else:
            self._write(step, FINAL, record, after, before if after != before else None, left)
        self._left = NOTHING  # the tensors are the script's to let go of
        if session.stripes is not None:
            session.stripes.write(step)
        if damage.spoiled() or not session.copies.wait(session.built_at):
            return False
        self.note_memory(step, record[4])
        return True

    def look(self, step: int) -> tuple[bytes, Own]:
        """The attempt before `step` has ended well: the random numbers' states, and everything else
        that is this rank's own."""
        random = self._session.random.take()
        self._refresh()
        return random, self._own(random, step)

    def commit(self, step: int, random: bytes, own: Own) -> None:
        """What `look` found is the start of `step`."""
        if None in self._orders:
            self._note_orders()
        self._left = self._session.gradients.committed()
        self.index += 1
        self._write(step, PROVISIONAL, own, random, None, self._left)
        self._last = own
        self.draws.committed(step)
        self.note_memory(step, own[4])

    def before_calls(self, step: int) -> None:
        """The script's loop begins: what it changes from here to its first call is noticed."""
        if not self._last:
            _, self._last = self.look(step)
            self._left = self._session.gradients.now()

    def end_pass(self, step: int) -> None:
        """Every step of the pass is committed here."""
        random = self._session.random.take()
        record, left = self._own(random, step), self._session.gradients.now()
        self._note_drift(step, record == self._last and left.same(self._left))
        self._write(step, PASS_END, record, random, None, left)

    def next_pass(self) -> None:
        self.pass_number += 1
        self._last = ()

    def pause(self, step: int) -> None:
        """This rank is paused before `step`; what would be done there before the step has been
        done."""
        session = self._session
        random = session.random.take()
        record, left = self._own(random, step), session.gradients.now()
        if not damage.spoiled():
            self._note_drift(step, record == self._last and left.same(self._left))
            self._write(step, PAUSED, record, random, None, left)

    def listen(self) -> None:
        """An attempt begins: what an attempt before it left half done of a backward does not
        count."""
        if None in self._orders:
            for order, ready in zip(self._orders, self._ready, strict=True):
                if order is None:
                    ready.again()

    def taken_back(self, step: int, entry: Entry | None) -> None:
        """A repair has put this rank to the start of `step`, as `entry` has it where its state was
        lost."""
        self._last, self._left = (), NOTHING
        if entry is not None:
            self._committed = (step, entry.committed)
            self._orders, self._structure = entry.orders, entry.structure
            for order, ready in zip(self._orders, self._ready, strict=True):
                if order is not None:
                    ready.stop()
                else:
                    ready.listen()
        self._session.state.refresh()
        self._session.gradients.watch(self._session.state.parameters())
        self.lay_out()
        self.note_memory(step)
        self.drifted = {s for s in self.drifted if s < step}

    # -- what --------------------------------------------------------------------------------------

    def _own(self, random: bytes, step: int) -> tuple[Any, ...]:
        """This rank's private state as it is now, gradients apart, and a mark of the replicated
        one. `random`: numbers' states that belong to it; `step`: that it will be the start of."""
        state = self._session.state
        rows = state.private_rows
        self._private = rows.gather(self._private) if rows.hosted else gather(state.private)
        return (
            random,
            state.settings(),
            self._private,
            buckets.synced(state.ddps),
            replicas.mark(state.replicated_rows, step),
            self.draws.places(),
        )

    def between(self, step: int) -> Entry:
        """The start of the current `step`, as recorded or as it is in memory now."""
        session = self._session
        kept = session.entries.read(step)
        if kept is not None and kept[0] != PROVISIONAL:
            return entries.decode(kept[1], session.entries.seal, step)
        random, own = self.look(step)
        left = session.gradients.now()
        rows = [Row(r.index, r.name, r.tensor.clone()) for r in left.rows]
        return self._entry(step, FINAL, own, random, None, Left(tuple(rows), left.skipped))

    def _refresh(self) -> None:
        """The script may have added or exchanged tensors."""
        state = self._session.state
        if state.changed() and state.refresh():
            self._structure = state.structure()
            self._session.gradients.watch(state.parameters())
            self.lay_out()

    def note_memory(self, step: int, mark: int | None = None) -> None:
        """What the replicated state is now is that of the start of `step`. `mark`: of it, where a
        record has it already."""
        state = self._session.state
        self._versions = state.versions()
        self._mark = replicas.mark(state.replicated_rows, step) if mark is None else mark

    def is_clean(self, step: int) -> bool:
        """Whether it is still that; `parameter.data` is written to without a word of torch's."""
        state = self._session.state
        return (
            state.versions() == self._versions
            and replicas.mark(state.replicated_rows, step) == self._mark
        )

    def _note_drift(self, step: int, same: bool) -> None:
        """User code between two steps may have changed what was recorded at the last commit."""
        if self._last and not same:
            self.drifted = drifting(self.drifted, step)
            if self.calls:
                random, settings, *_, draws = self._last
                self._committed = (step, plain.encode((random, settings, draws)))

    def compare(self, step: int) -> None:
        """At the ends of some steps: is what was the same on all ranks still so? Raises what a
        collective raises."""
        session = self._session
        if not replicas.is_due(step):
            return
        state = session.state
        self._refresh()
        differing = replicas.differing(
            state.replicated, session.communicators.world_size, state.layout()
        )
        if not differing or damage.spoiled() or slot.interruption() > session.built_at:
            return
        text = (
            "%d of %d tensors differ between the ranks since step %d at the latest, and are kept"
            " per rank from now on"
        )
        log.warning(text, len(differing), len(state.replicated), step)
        state.set_apart(differing)
        self._structure = state.structure()
        self.lay_out()

    def protected_tensors(self) -> Iterator[torch.Tensor]:
        """All that is recorded, or made again when a step is repeated."""
        session, state = self._session, self._session.state
        yield from (*state.replicated, *state.private)
        yield from (sharded.local(p.grad) for p in state.parameters() if p.grad is not None)
        if session.stripes is not None:
            yield from session.stripes.rows()
        held = [("", {**state.modules, **state.optimizers, **state.small})]
        yield from (tensor for _, tensor in reach.find(held, lambda kind: kind is torch.Tensor))

    def _note_orders(self) -> None:
        """The first whole backward through a DDP is over: keep its order; DDP lays its buckets anew
        when the next forward begins."""
        for i, ddp in enumerate(self._session.state.ddps):
            if self._orders[i] is None and (order := self._ready[i].take()) is not None:
                self._orders[i] = order
                buckets.mark_next_layout(ddp)

    def _write(
        self,
        step: int,
        kind: int,
        record: tuple[Any, ...],
        random: bytes,
        fetch: bytes | None,
        left: Left,
    ) -> None:
        self.keep_entry(step, kind, self._entry(step, kind, record, random, fetch, left))

    def _entry(
        self,
        step: int,
        kind: int,
        record: tuple[Any, ...],
        random: bytes,
        fetch: bytes | None,
        left: Left,
    ) -> Entry:
        again = kind in (FINAL, PAUSED) and self._committed[0] == step
        return Entry(
            pass_number=self.pass_number,
            index=self.index,
            random=random,
            fetch=fetch,
            pass_random=self.pass_random,
            loader=self.loader_place,
            batch=self._batches.fingerprint(step) if kind == FINAL else None,
            previous=self._batches.fingerprint(step - 1),
            settings=record[1],
            structure=self._structure,
            orders=self._orders,
            synced=record[3],
            skipped=left.skipped,
            mark=record[4],
            private=record[2],
            calls=self.calls,
            draws=record[5],
            origins=self.draws.origins(),
            committed=self._committed[1] if again else b"",
            gradients=entries.rows(left.rows),
        )

    def keep_entry(self, step: int, kind: int, entry: Entry) -> None:
        session = self._session
        damaged = damage.damaged()
        parts = entries.encode(entry, session.entries.seal, step)
        # a page of a gradient that was lost under the copy is zeros in it: that is no record
        session.entries.write(step, kind, parts, whole=lambda: damage.damaged() == damaged)
        session.copies.wrote(step, kind)

    def lay_out(self) -> None:
        session = self._session
        if session.device.device.type == "cpu":
            damage.register(
                damage.TENSORS,
                [
                    (t.data_ptr(), t.numel())
                    for t in (*session.state.replicated, *session.state.private)
                ],
            )
        if session.stripes is None:
            return
        try:
            session.stripes.lay_out(session.state.replicated)
        except OSError as error:
            log.warning(
                "no room for stripes (%s): a fault after the optimizer's update cannot be undone;"
                " enlarge /dev/shm",
                error,
            )
            session.stripes = None
            return
        damage.register(damage.SHARED, [session.stripes.region()])

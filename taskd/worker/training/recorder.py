"""What a rank records, and when: at the start of an attempt, at its end, and where it waits for the
others.

At the start of an attempt the private state is recorded as final and this rank's stripe of the
replicated state copied; at its end (commit) the private state again, provisionally: code between
two steps may still change it. Where that is expensive it is done at every k-th step only
(pace.py); at the others this process remembers what is small, which is enough for a step that
is repeated while its parameters are untouched.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from dataclasses import replace

import torch

from taskd import settings
from taskd.core.snapshots import FINAL, PASS_END, PAUSED, PROVISIONAL, drifting
from taskd.cython_api import damage, slot
from taskd.worker.communication import buckets, comm_hooks
from taskd.worker.discovery import reach
from taskd.worker.repair.session import RepairSession
from taskd.worker.set_up import imports
from taskd.worker.state import entry as entries
from taskd.worker.state import plain, replicas, sharded
from taskd.worker.state.entry import Entry
from taskd.worker.state.given import Refused
from taskd.worker.state.gradients import NOTHING, Left
from taskd.worker.training.batches import Batches
from taskd.worker.training.draws import Draws
from taskd.worker.training.own_state import Own, OwnState
from taskd.worker.training.pace import Pace

log = logging.getLogger("taskd.worker")


class Recorder:
    """`pass_number`: how many times steps() or batches() has been gone through; `index`: batches
    handed out in this pass; `pass_random` and `loader_place`: random numbers' states and the
    loader's counters when the pass began. `draws`: the iterators of job.iterate; `calls`: the loop
    calls job.call. `pace`: at which steps the whole state is recorded. `starts`: of job.call, what
    is known of the starts of steps."""

    def __init__(self, session: RepairSession, batches: Batches) -> None:
        self._session, self._batches = session, batches
        self.draws = Draws(session.random, session.communicators.aside)
        self.pace = Pace(settings.snapshot_steps(os.environ))
        self._start: tuple[int, int, Entry] | None = None  # step, kind, of a step not recorded
        self.starts: dict[int, Entry] = {}
        self._began = 0.0  # the last attempt
        self._spent = 0.0  # on recording at the last commit
        self.calls = False
        # step, and what code before it, but after the last commit, has changed, as it was
        self._committed = (-1, b"")
        self.pass_number = self.index = 0
        self.pass_random = self.loader_place = b""
        # steps whose start is not what was recorded at the commit before
        self.drifted: set[int] = set()
        self._repaired = -1  # the step at which the last repair resumed
        self._structure = session.state.structure()
        self.plan = ""  # of the pass
        # per DDP, see communication/buckets.py
        self._orders: list[list[int] | None] = [None] * len(session.state.ddps)
        self._ready = [buckets.listener(ddp) for ddp in session.state.ddps]
        self._own = OwnState(session.state)
        self.is_clean, self.note_memory = self._own.is_clean, self._own.note
        self._last: Own | None = None  # what was recorded at the last commit
        self._left: Left = NOTHING  # gradients, likewise
        session.gradients.watch(session.state.parameters())
        session.start = self.start

    # -- when --------------------------------------------------------------------------------------

    def formed(self) -> None:
        """Record the initial state, once differences between ranks are known."""
        random = self._session.random.take()
        self._structure = self._session.state.structure()
        self.pass_number = -1
        own = self._take(random, 0)
        left = self._session.gradients.now()
        self.keep_entry(0, PASS_END, self._entry(0, PASS_END, own, random, None, left))
        self.pass_number = 0

    def new_pass(self, random: bytes, loader_place: bytes, step: int) -> None:
        self.pace.begin_pass(step)
        self.index, self.pass_random, self.loader_place = 0, random, loader_place

    def begin(self, step: int, before: bytes, after: bytes) -> bool:
        """`step` begins; False when its record cannot be trusted. `before` and `after`: the random
        numbers' states around the fetching of its batch, the same where there is none."""
        session, began = self._session, time.monotonic()
        self._refresh()
        oldest = self.pace.oldest(step)
        self.draws.attempt_begins(step, oldest)
        whole = self.pace.due(step)
        record = self._take(before, step, whole)
        left = session.gradients.now()
        if damage.spoiled():
            return False
        same = self._unchanged(record, left)
        self._note_drift(step, same)
        fetch = before if after != before else None
        if (
            same
            and fetch is None
            and self._batches.fingerprint(step) is None
            and session.entries.has(step, PROVISIONAL)
        ):
            session.entries.promote(step)
        elif whole:
            self.keep_entry(step, FINAL, self._entry(step, FINAL, record, after, fetch, left))
        if self.calls or not whole:
            start = self._entry(step, FINAL, record, after, fetch, left.copied())
            self._remember(step, FINAL, start, oldest)
        self._left = NOTHING  # the tensors are the script's to let go of
        if whole and session.stripes is not None:
            session.stripes.write(step)
        if damage.spoiled() or not session.copies.wait(session.built_at):
            return False
        if whole:
            self.pace.recorded(step)
            now, spent, self._spent = time.monotonic(), self._spent, 0.0
            self.pace.measured(spent + now - began, began - self._began)
        self._began = began
        self.note_memory(step, record.mark)
        return True

    def look(self, step: int) -> tuple[bytes, Own]:
        """The attempt before `step` has ended well: the random numbers' states, and everything else
        that is this rank's own."""
        random = self._session.random.take()
        self._refresh()
        return random, self._take(random, step, self.pace.every == 1)

    def commit(self, step: int, random: bytes, own: Own) -> None:
        """What `look` found is the start of `step`."""
        self._note_orders()
        self._left = self._session.gradients.committed()
        self.index += 1
        if own.shards is not None:
            self._start, began = None, time.monotonic()
            entry = self._entry(step, PROVISIONAL, own, random, None, self._left)
            self.keep_entry(step, PROVISIONAL, entry)
            self._spent = time.monotonic() - began
        else:
            left = self._left.copied()
            start = self._entry(step, PROVISIONAL, own, random, None, left)
            self._remember(step, PROVISIONAL, start, -1)
        self._last = own
        self.draws.committed(step)
        self.note_memory(step, own.mark)

    def before_calls(self, step: int) -> None:
        """The script's loop begins: what it changes from here to its first call is noticed."""
        if self._last is None:
            _, self._last = self.look(step)
            self._left = self._session.gradients.now()

    def end_pass(self, step: int) -> None:
        """Every step of the pass is committed here."""
        random = self._session.random.take()
        record, left = self._take(random, step), self._session.gradients.now()
        self._note_drift(step, self._unchanged(record, left))
        self.keep_entry(step, PASS_END, self._entry(step, PASS_END, record, random, None, left))

    def next_pass(self) -> None:
        self.pass_number += 1
        self._last = None

    def pause(self, step: int) -> None:
        """This rank is paused before `step`; what would be done there before the step has been
        done."""
        session = self._session
        random = session.random.take()
        record, left = self._take(random, step), session.gradients.now()
        if not damage.spoiled():
            self._note_drift(step, self._unchanged(record, left))
            self.keep_entry(step, PAUSED, self._entry(step, PAUSED, record, random, None, left))

    def listen(self) -> None:
        """An attempt begins: what an attempt before it left half done of a backward does not
        count."""
        for ready in self._ready:
            if ready.listening:
                ready.again()

    def taken_back(self, step: int, entry: Entry | None, repaired: bool) -> None:
        """A repair, or a dump, has put this rank to the start of `step`, as `entry` has it where
        its state was lost."""
        self._last, self._left = None, NOTHING
        if self._start is not None and self._start[0] > step:
            self._start = None
        if entry is not None:
            self.pace.go_back(step, entry.every)
            self._committed = (step, entry.committed)
            self._orders, self._structure = entry.orders, entry.structure
            for order, ready in zip(self._orders, self._ready, strict=True):
                ready.put(order)
        self._session.state.refresh()
        self._session.gradients.watch(self._session.state.parameters())
        self.lay_out()
        self.note_memory(step)
        if repaired:
            self._repaired = step
        self.drifted = {s for s in self.drifted if s < step}

    # -- what --------------------------------------------------------------------------------------

    def _take(self, random: bytes, step: int, whole: bool = True) -> Own:
        return self._own.take(random, self.draws.places(), step, whole)

    def _unchanged(self, own: Own, left: Left) -> bool:
        """Whether nothing has changed since the last commit."""
        last = self._last
        return last is not None and left.same(self._left) and self._own.same(own, last)

    def _remember(self, step: int, kind: int, entry: Entry, oldest: int) -> None:
        """Keep what is small of the start of a step in this process."""
        self._start = (step, kind, entry) if entry.shards is None else None
        if self.calls and kind == FINAL:
            kept = {s: e for s, e in self.starts.items() if s >= oldest}
            self.starts = kept | {step: replace(entry, shards=None)}

    def start(self, step: int) -> tuple[int, Entry] | None:
        """Kind and content of what this process knows of the start of the current step."""
        found = self._start
        return (found[1], found[2]) if found is not None and found[0] == step else None

    def between(self, step: int) -> Entry:
        """The start of the current `step`, as recorded or as it is in memory now."""
        session = self._session
        kept = session.entries.read(step)
        if kept is not None and kept[0] != PROVISIONAL:
            return entries.decode(kept[1], session.entries.seal, step)
        if step in self.starts:
            return self.starts[step]
        random, own = self.look(step)
        return self._entry(step, FINAL, own, random, None, session.gradients.now().copied())

    def _refresh(self) -> None:
        """The script may have added or exchanged tensors."""
        state = self._session.state
        if state.changed() and state.refresh():
            self._structure = state.structure()
            self._session.gradients.watch(state.parameters())
            self.lay_out()

    def _note_drift(self, step: int, same: bool) -> None:
        """User code between two steps may have changed what was recorded at the last commit."""
        if self._last is not None and not same:
            self.drifted = drifting(self.drifted, step)
            if self.calls:
                last = self._last
                self._committed = (step, plain.encode((last.random, last.settings, last.draws)))

    def compare(self, step: int) -> None:
        """At the ends of some steps, counted from the start and from the last repair: is what was
        the same on all ranks still so? At the end of a pass's first step: do they run the same
        loop? Raises what a collective raises, and Refused."""
        session = self._session
        size = session.communicators.world_size
        if self.index == 0 and (differ := replicas.differing(self.plan, size)):
            raise Refused(f"the ranks run different loops: {differ}")
        after = self._repaired >= 0 and replicas.is_due(step - self._repaired)
        if not (replicas.is_due(step) or after):
            return
        state = session.state
        self._refresh()
        self._agree()
        found = replicas.compare(
            state, session.rank, session.node, session.communicators.world_size
        )
        if found is None or slot.interruption() > session.built_at:
            return
        # two comparisons had found them equal: before, a difference may be the script's way
        if self._repaired > 1:
            names = [".".join(str(part) for part in key if part != "") for key, _ in state.names()]
            raise Refused(
                f"since step {step} at the latest, {found.names(names)}; they were equal before the"
                f" repair at step {self._repaired}, so something that the script carries from step"
                " to step was not restored there: see `not protected` and `not seen` in the ranks'"
                " logs (docs/state.md)"
            )
        text = "rank %d: since step %d at the latest, %s"
        log.warning(text, session.rank, step, found.says(len(state.replicated)))
        state.set_apart(found.apart, found.replicas)
        self._structure = state.structure()
        # stripes of earlier steps stay: they fit the structure in the records of these steps
        self.lay_out()

    def _agree(self) -> None:
        """How many steps apart the whole state is recorded from now on."""
        session, pace = self._session, self.pace
        if not pace.chosen or not session.state.shards:
            return
        size = sum(row.numel() for row in session.state.shards)
        if session.stripes is not None:
            size += session.stripes.length
        before = pace.every
        pace.agree(replicas.most(pace.wanted(size), session.communicators.world_size))
        if pace.every != before:
            text = "rank %d: its whole state (%.1f MiB) is recorded every %d steps"
            log.info(text, session.rank, size / 2**20, pace.every)

    def protected_tensors(self) -> Iterator[torch.Tensor]:
        """All that is recorded, or made again when a step is repeated."""
        session, state = self._session, self._session.state
        yield from (*state.replicated, *state.private)
        yield from (sharded.local(p.grad) for p in state.parameters() if p.grad is not None)
        if session.stripes is not None:
            yield from session.stripes.rows()
        yield from session.gradients.met()
        yield from comm_hooks.seen()
        yield from session.variables.tensors()
        held = [("", {**state.modules, **state.optimizers, **state.small})]
        yield from (tensor for _, tensor in reach.find(held, lambda kind: kind is torch.Tensor))

    def _note_orders(self) -> None:
        """The first whole backward through a DDP is over: keep its order; DDP lays its buckets anew
        when the next forward begins."""
        for i, ddp in enumerate(self._session.state.ddps):
            if self._ready[i].listening and (order := self._ready[i].take()) is not None:
                self._orders[i] = order
                buckets.mark_next_layout(ddp)

    def _entry(
        self,
        step: int,
        kind: int,
        record: Own,
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
            place=self._batches.place(step - 1),
            settings=record.settings,
            structure=self._structure,
            orders=self._orders,
            synced=record.synced,
            skipped=left.skipped,
            mark=record.mark,
            private=record.buffers,
            shards=record.shards,
            every=self.pace.every,
            calls=self.calls,
            draws=record.draws,
            origins=self.draws.origins(),
            committed=self._committed[1] if again else b"",
            plan=self.plan + (self._session.variables.ranges if self.calls else ""),
            replica_set=self._session.state.replicas.of,
            gradients=entries.rows(left.rows),
        )

    def keep_entry(self, step: int, kind: int, entry: Entry) -> None:
        session = self._session
        imports.save()  # before the record that follows it to the keepers
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
            session.stripes.lay_out(session.state.replicated, session.state.replicas.local)
        except OSError as error:
            log.warning(
                "no room for stripes (%s): a fault after the optimizer's update cannot be undone;"
                " enlarge /dev/shm",
                error,
            )
            session.stripes = None
            return
        damage.register(damage.SHARED, [session.stripes.region()])

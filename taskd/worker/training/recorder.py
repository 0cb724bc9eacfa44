"""Records a rank's state: at the start of an attempt, at its end, and where it waits for the
others.

At the start of an attempt the private state is recorded as final and this rank's stripe of the
replicated state copied; at its end (commit) the private state again, provisionally: code between
two steps may still change it. Where that is expensive, it happens only at every k-th step
(pace.py); at the others this process remembers the small state, which suffices to repeat a step
whose parameters are untouched.
"""

from __future__ import annotations

import logging
import os
import time
from dataclasses import replace

from taskd import settings
from taskd.core.snapshots import FINAL, PASS_END, PAUSED, PROVISIONAL, drifting
from taskd.cython_api import damage
from taskd.records import room
from taskd.worker.dump import estimating
from taskd.worker.repair.session import RepairSession
from taskd.worker.set_up import imports
from taskd.worker.state import entry as entries
from taskd.worker.state import plain
from taskd.worker.state.batches import Batches
from taskd.worker.state.entry import Entry
from taskd.worker.state.gradients import NOTHING, Left
from taskd.worker.training import memory
from taskd.worker.training.bucket_orders import BucketOrders
from taskd.worker.training.cursor import Cursor
from taskd.worker.training.draws import Draws
from taskd.worker.training.own_state import Own, OwnState
from taskd.worker.training.pace import Pace

log = logging.getLogger("taskd.worker")

# commits of this process until it measures how long a dump takes: optimizers have their state then
MEASURED = 3


class Recorder:
    """`cursor`, `batches`, `draws`: the position of the script's loop, set by the loop. `pace`: at
    which steps the whole state is recorded. `starts`: the known starts of steps of job.call.
    `drifted`: steps whose start differs from the record of the previous commit."""

    def __init__(
        self, session: RepairSession, cursor: Cursor, batches: Batches, draws: Draws
    ) -> None:
        self._session, self._cursor, self._batches, self._draws = session, cursor, batches, draws
        self.pace = Pace(settings.snapshot_steps(os.environ))
        self._start: tuple[int, int, Entry] | None = None  # step, kind, of a step not recorded
        self.starts: dict[int, Entry] = {}
        self._began = 0.0  # the last attempt
        self._spent = 0.0  # on recording at the last commit
        # step, and the old values of what code between the last commit and it has changed
        self._committed = (-1, b"")
        self.drifted: set[int] = set()
        self._structure = b""
        self._orders = BucketOrders(session.state.ddps)
        self._own = OwnState(session.state)
        self.is_clean, self.note_memory = self._own.is_clean, self._own.note
        self._last: Own | None = None  # what was recorded at the last commit
        self._left: Left = NOTHING  # gradients, likewise
        self._commits = 0
        self._unrecorded = False  # there was no room for the newest record
        session.gradients.watch(session.state.parameters())
        session.start = self.start

    # -- when --------------------------------------------------------------------------------------

    def formed(self) -> None:
        """Record the initial state, once differences between ranks are known."""
        self.lay_out()
        own, left = self._collect(self._session.random.snapshot(), 0), self._session.gradients.now()
        self.keep_entry(0, PASS_END, replace(self._entry(0, PASS_END, own, left), pass_number=-1))

    def begin(self, step: int, before: bytes, after: bytes) -> bool:
        """Record the start of `step`; False if the record cannot be trusted. `before`, `after`: the
        generators' states around the fetch of its batch, equal if there is none."""
        session, began = self._session, time.monotonic()
        self.refresh()
        oldest = self.pace.oldest(step)
        self._draws.attempt_begins(step, oldest)
        whole = self.pace.due(step)
        own = self._collect(before, step, whole)
        left = session.gradients.now()
        if damage.spoiled():
            return False
        same = self._unchanged(own, left)
        self._note_drift(step, same)
        if (
            same
            and after == before
            and self._batches.fingerprint(step) is None
            and session.entries.has(step, PROVISIONAL)
        ):
            session.entries.promote(step)
        elif whole:
            self.keep_entry(step, FINAL, self._entry(step, FINAL, own, left, after))
        if self._cursor.calls or not whole:
            start = self._entry(step, FINAL, own, left.copied(), after)
            self._remember(step, FINAL, start, oldest)
        self._left = NOTHING  # the tensors are the script's to let go of
        if whole and session.stripes is not None and memory.stripes_fit(session, step):
            session.stripes.write(step)
        if damage.spoiled() or not session.copies.wait(session.built_at):
            return False
        if whole:
            self.pace.recorded(step)
            now, spent, self._spent = time.monotonic(), self._spent, 0.0
            self.pace.measured(spent + now - began, began - self._began)
        self._began = began
        self.note_memory(step, own.mark)
        self._orders.attempt_begins()
        return True

    def collect(self, step: int) -> Own:
        """Collect this rank's own state after the attempt before `step` has succeeded."""
        random = self._session.random.snapshot()
        self.refresh()
        return self._collect(random, step, self.pace.every == 1)

    def commit(self, step: int, own: Own) -> None:
        """Record the result of `collect` as the start of `step`."""
        session = self._session
        self._orders.committed()
        self._left = session.gradients.committed()
        session.standing.committed(self._left)
        self._commits += 1
        if self._commits == MEASURED and session.rank == 0:
            estimating.begin(session.state, session.communicators.world_size, session.agent)
        if own.shards is not None:
            self._start, began = None, time.monotonic()
            entry = self._entry(step, PROVISIONAL, own, self._left)
            self.keep_entry(step, PROVISIONAL, entry)
            self._spent = time.monotonic() - began
        else:
            start = self._entry(step, PROVISIONAL, own, self._left.copied())
            self._remember(step, PROVISIONAL, start, -1)
        self._last = own
        self._draws.committed(step)
        self.note_memory(step, own.mark)

    def before_calls(self, step: int) -> None:
        """Notice, from the start of the script's loop, what it changes before its first call."""
        if self._last is None:
            self._last, self._left = self.collect(step), self._session.gradients.now()

    def wait(self, step: int, kind: int) -> None:
        """Record that all work before `step` is done: this rank is PAUSED, or waits at PASS_END
        until the others have committed the previous step."""
        session = self._session
        own, left = self._collect(session.random.snapshot(), step), session.gradients.now()
        # after the end of a pass no step before it is repeated, so this record must exist
        if kind == PASS_END or not damage.spoiled():
            self._note_drift(step, self._unchanged(own, left))
            self.keep_entry(step, kind, self._entry(step, kind, own, left))

    def end_pass(self) -> None:
        """Do not count changes by the script before the next pass as drift."""
        self._last = None

    def taken_back(self, step: int, entry: Entry | None) -> None:
        """Start over from `step`, after a repair or a dump; `entry`: its record, where state was
        lost."""
        self._last, self._left = None, NOTHING
        if self._start is not None and self._start[0] > step:
            self._start = None
        if entry is not None:
            self.pace.go_back(step, entry.every)
            self._committed = (step, entry.committed)
            self._structure = entry.structure
            self._orders.put(entry.orders)
        self._session.state.refresh()
        self._session.gradients.watch(self._session.state.parameters())
        memory.lay_out(self._session)
        self.note_memory(step)
        self.drifted = {s for s in self.drifted if s < step}

    # -- what --------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """The script may have added or exchanged tensors."""
        state = self._session.state
        if state.changed() and state.refresh():
            self._session.gradients.watch(state.parameters())
            self.lay_out()

    def lay_out(self) -> None:
        """Lay out memory again: tensors, or which of them are replicated, have changed."""
        self._structure = self._session.state.structure()
        memory.lay_out(self._session)

    def _collect(self, random: bytes, step: int, whole: bool = True) -> Own:
        return self._own.collect(random, self._draws.places(), step, whole)

    def _unchanged(self, own: Own, left: Left) -> bool:
        """Whether nothing has changed since the last commit."""
        last = self._last
        return last is not None and left.same(self._left) and self._own.same(own, last)

    def _note_drift(self, step: int, same: bool) -> None:
        """Note whether user code between two steps has changed what the last commit recorded."""
        if (last := self._last) is not None and not same:
            self.drifted = drifting(self.drifted, step)
            if self._cursor.calls:
                self._committed = (step, plain.encode((last.random, last.settings, last.draws)))

    def _remember(self, step: int, kind: int, entry: Entry, oldest: int) -> None:
        """Remember the small state of the start of a step in this process."""
        if entry.shards is None:
            self._start = (step, kind, entry)
        if self._cursor.calls and kind == FINAL:
            kept = {s: e for s, e in self.starts.items() if s >= oldest}
            self.starts = kept | {step: replace(entry, shards=None)}

    def start(self, step: int) -> tuple[int, Entry] | None:
        """Kind and content of the remembered start of the current step."""
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
        return self._entry(step, FINAL, self.collect(step), session.gradients.now().copied())

    def _entry(
        self, step: int, kind: int, own: Own, left: Left, after: bytes | None = None
    ) -> Entry:
        """`after`: random numbers' states once its batch has been fetched, if one has been."""
        cursor, random = self._cursor, own.random if after is None else after
        again = kind in (FINAL, PAUSED) and self._committed[0] == step
        entry = Entry(
            pass_number=cursor.pass_number,
            index=cursor.index,
            random=random,
            fetch=own.random if random != own.random else None,
            pass_random=cursor.pass_random,
            loader=cursor.loader,
            batch=self._batches.fingerprint(step) if kind == FINAL else None,
            previous=self._batches.fingerprint(step - 1),
            place=self._batches.place(step - 1),
            settings=own.settings,
            structure=self._structure,
            orders=self._orders.present,
            synced=own.synced,
            skipped=left.skipped,
            mark=own.mark,
            private=own.buffers,
            shards=own.shards,
            every=self.pace.every,
            calls=cursor.calls,
            draws=own.draws,
            origins=self._draws.origins(),
            committed=self._committed[1] if again else b"",
            plan=cursor.plan + (self._session.variables.ranges if cursor.calls else ""),
            replica_set=self._session.state.replicas.of,
            gradients=entries.rows(left.rows),
        )
        nested = self._session.standing.nested(step, kind, entry)
        return replace(entry, nested=nested) if nested else entry

    def keep_entry(self, step: int, kind: int, entry: Entry) -> None:
        """Write the record of `step`. Where there is no room for it the job trains on; this process
        remembers what it can."""
        session = self._session
        imports.save()  # before the record that follows it to the keepers
        damaged = damage.damaged()
        parts = entries.encode(entry, session.entries.seal, step)
        try:
            # a page of a gradient that was lost under the copy is zeros in it: that is no record
            session.entries.write(step, kind, parts, whole=lambda: damage.damaged() == damaged)
        except OSError as error:
            self._say_unrecorded(sum(map(len, parts)), error)
            if not entry.gradients:  # a copy of these would take the memory that is not there
                self._start = (step, kind, replace(entry, shards=None))
            return
        self._start = None
        if self._unrecorded:
            self._unrecorded = False
            log.warning("rank %d: there is room for its record now", session.rank)
        session.copies.wrote(step, kind)

    def _say_unrecorded(self, size: int, error: OSError) -> None:
        if not self._unrecorded:
            self._unrecorded = True
            log.warning(
                "rank %d: no room for its record of %s (%s): if its process or node is lost, the"
                " job cannot go on, until there is. %s",
                self._session.rank,
                room.mib(size),
                error.strerror,
                room.REMEDY,
            )

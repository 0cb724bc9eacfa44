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
from typing import NamedTuple

from taskd import settings
from taskd.core.job.snapshots import FINAL, PASS_END, PAUSED, PROVISIONAL, drifting
from taskd.cython_api import damage
from taskd.cython_api.part import same
from taskd.records import room
from taskd.worker.dump import estimating
from taskd.worker.repair.session import RepairSession
from taskd.worker.set_up import imports
from taskd.worker.state import entry as entries
from taskd.worker.state import plain
from taskd.worker.state.batches import Batches
from taskd.worker.state.entry import Entry
from taskd.worker.state.part import Content, tensors
from taskd.worker.training import memory
from taskd.worker.training.cursor import Cursor
from taskd.worker.training.draws import Draws
from taskd.worker.training.pace import Pace

log = logging.getLogger("taskd.worker")

# commits of this process until it measures how long a dump takes: optimizers have their state then
MEASURED = 3


class Taken(NamedTuple):
    """All that a rank's record has besides the position of its loop. `mark`: of the replicated
    state, see state/replicas.py; `draws`: places of job.iterate; `whole`: taken at a step at which
    the whole state is recorded."""

    parts: dict[str, Content]
    mark: int
    draws: bytes
    whole: bool


class Recorder:
    """`cursor`, `batches`, `draws`: the position of the script's loop, set by the loop. `pace`: at
    which steps the whole state is recorded. `starts`: the known starts of steps of job.call;
    `target`: the step of the call under way, or that job.finish() waits for; `returned`: by step,
    its start as the code between calls made it, and who stood in for whom.
    `drifted`: steps whose start differs from the record of the previous commit."""

    def __init__(
        self, session: RepairSession, cursor: Cursor, batches: Batches, draws: Draws
    ) -> None:
        self._session, self._cursor, self.batches, self._draws = session, cursor, batches, draws
        self.pace = Pace(settings.snapshot_steps(os.environ))
        self.starts: dict[int, Entry] = {}
        self.target = -1
        self.returned: dict[int, tuple[Entry, dict[int, int]]] = {}
        self._began = 0.0  # the last attempt
        self._spent = 0.0  # on recording at the last commit
        # step, and the old values of what code between the last commit and it has changed
        self._committed = (-1, b"")
        self.drifted: set[int] = set()
        self.changed: set[int] = set()  # steps before which code behind a pass has changed it:
        self._ended = -1, b"", 0  # the replicated state at a pass's end: step, versions, mark
        self._structure = b""
        self._noted: tuple[int, bytes, int] = -1, b"", 0  # see `note_memory`
        self._last: Taken | None = None  # what was recorded at the last commit
        self._commits = 0
        self._unrecorded = False  # there was no room for the newest record
        self.refused = ""  # why nothing is recorded any more
        self.publishing = False  # this attempt's stripe is still copied; see Stripes.write
        session.gradients.watch(session.state.parameters())

    # -- when --------------------------------------------------------------------------------------

    def formed(self) -> None:
        """Record the initial state, once differences between ranks are known."""
        self.lay_out()
        entry = self._entry(0, PASS_END, self.collect(0))
        self.keep_entry(0, PASS_END, replace(entry, pass_number=-1))

    def begin(self, step: int, before: bytes, after: bytes) -> bool:
        """Record the start of `step`; False if the record cannot be trusted. `before`, `after`: the
        generators' states around the fetch of its batch, equal if there is none."""
        session, pace, began = self._session, self.pace, time.monotonic()
        state = session.state
        self.publishing = False
        if not self._draws.idle:
            self._draws.attempt_begins(step, pace.oldest(step))
        if self.refused:
            return True
        whole = pace.due(step)
        taken = self.collect(step, whole, before)
        if damage.spoiled():
            return False
        last = self._last
        self.compare_with_end(step)
        unchanged = last is not None and same(taken, last)
        if last is not None and not unchanged:
            self.drifted = drifting(self.drifted, step)
            if self._cursor.calls:
                self._note_values(step, last)
        if (
            unchanged
            and after == before
            and self.batches.fingerprint(step) is None
            and session.entries.has(step, PROVISIONAL)
        ):
            session.entries.promote(step)
        elif whole:
            self.keep_entry(step, FINAL, self._entry(step, FINAL, taken, after))
        if self._cursor.calls or not whole:
            entry = self._entry(step, FINAL, taken, after)
            self._remember(step, FINAL, entry, pace.oldest(step), whole)
        self._last = None
        state.parts.let_go()
        stripes = session.stripes if whole else None
        if stripes is not None and (stripes.ready or memory.stripes_fit(session, step)):
            self.publishing = not stripes.write(step)
        if damage.spoiled() or not session.copies.wait(session.built_at):
            return False
        if whole:
            pace.recorded(step)
            if pace.chosen and state.shards:
                pace.measured(self._spent + time.monotonic() - began, began - self._began)
            self._spent = 0.0
        self._began = began
        versions = state.versions(step) if state.shards else state.replicated_rows.versions()
        self._noted = step, versions, taken.mark
        if session.orders.listening:
            session.orders.attempt_begins()
        return True

    def commit(self, step: int, taken: Taken | None) -> None:
        """Record `taken`, what an attempt has left but for what is late, as the start of `step`;
        None: it is not recorded."""
        session, state = self._session, self._session.state
        if taken is None:
            if not self._draws.idle:
                self._draws.committed(step)
            return
        if session.orders.listening:
            session.orders.committed()
        session.gradients.committed()
        state.parts.take_late(taken.parts, step)
        if session.stand_ins:
            session.standing.committed(taken.parts["gradients"])
        self._commits += 1
        if self._commits == MEASURED and session.rank == 0:
            estimating.begin(state, session.communicators.world_size, session.agent)
        entry = self._entry(step, PROVISIONAL, taken)
        if taken.whole:
            session.remembered, began = None, time.monotonic()
            self.keep_entry(step, PROVISIONAL, entry)
            self._spent = time.monotonic() - began
        else:
            self._remember(step, PROVISIONAL, entry, -1, whole=False)
        self._last = taken
        if not self._draws.idle:
            self._draws.committed(step)
        versions = state.versions(step) if state.shards else state.replicated_rows.versions()
        self._noted = step, versions, taken.mark

    def before_calls(self, step: int) -> None:
        """Notice, from the start of the script's loop, what it changes before its first call."""
        if self._last is None and not self.refused:
            self._last = self.collect(step, self.pace.every == 1)

    def wait(self, step: int, kind: int) -> None:
        """Record that all work before `step` is done: this rank is PAUSED, or waits at PASS_END
        until the others have committed the previous step."""
        taken = self.collect(step)
        # after the end of a pass no step before it is repeated, so this record must exist
        if kind == PASS_END or not damage.spoiled():
            if self._last is not None and not same(taken, self._last):
                self.drifted = drifting(self.drifted, step)
                if self._cursor.calls:
                    self._note_values(step, self._last)
            self.keep_entry(step, kind, self._entry(step, kind, taken))
        if kind == PASS_END:
            self._note_end(step, taken.mark)

    def _note_end(self, step: int, mark: int) -> None:
        self._ended = step, self._session.state.replicated_rows.versions(), mark

    def compare_with_end(self, step: int) -> None:
        """What the script does behind a pass, which has ended before `step`, may change replicated
        state: a replacement whose record is from there, and that does it again, must not be given
        the result."""
        rows = self._session.state.replicated_rows
        if self._ended[0] == step and self._ended != (step, rows.versions(), rows.mark(step)):
            self.changed = drifting(self.changed, step)

    def end_pass(self) -> None:
        """Do not count changes by the script before the next pass as drift."""
        self._last = None
        self._session.state.attributes.forget_waiting()

    def taken_back(self, step: int, entry: Entry | None) -> None:
        """Start over from `step`, after a repair; `entry`: its record, where state was
        lost."""
        self._last = None
        remembered = self._session.remembered
        if remembered is not None and remembered[0] > step:
            self._session.remembered = None
        if entry is not None:
            self.pace.go_back(step, entry.every)
            self._committed = (step, entry.committed)
            self._structure = entry.structure
        self._session.state.refresh()
        self._session.gradients.watch(self._session.state.parameters())
        memory.lay_out(self._session)
        self.note_memory(step)
        if self._ended[0] == step and step not in self.changed:
            self._note_end(step, self._noted[2])
        self.drifted = {s for s in self.drifted if s < step}
        self.changed = {s for s in self.changed if s < step}

    # -- what --------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """The script may have added or exchanged tensors."""
        state = self._session.state
        if state.places.changed() and state.refresh():
            self._session.gradients.watch(state.parameters())
            self.lay_out()

    def lay_out(self) -> None:
        """Lay out memory again: tensors, or which of them are replicated, have changed."""
        self._structure = self._session.state.structure()
        memory.lay_out(self._session)

    def collect(
        self, step: int, whole: bool = True, random: bytes | None = None, late: bool = True
    ) -> Taken:
        """Take all that there is, as the start of `step`; without `late` all but what is known once
        the step before is committed. `random`: generators' states that belong to it, if others have
        been drawn since."""
        state = self._session.state
        if state.places.changed():
            self.refresh()
        parts = state.parts.take(step, whole, late)
        if random is not None and random is not parts["random"].data:
            parts["random"] = Content(random)
        draws = b"" if self._draws.idle else self._draws.places()
        return Taken(parts, state.replicated_rows.mark(step), draws, whole)

    def note_memory(self, step: int) -> None:
        """Note that parameters and optimizer state are those of the start of `step`: versions, and
        the mark of the replicated ones."""
        mark = self._session.state.replicated_rows.mark(step)
        self._noted = step, self._session.state.versions(step), mark

    def is_clean(self, step: int) -> bool:
        """Whether they still are; writes through `.data` do not change torch's version counter."""
        at, versions, mark = self._noted
        state = self._session.state
        return state.versions(at) == versions and state.replicated_rows.mark(at) == mark

    def _note_values(self, step: int, last: Taken) -> None:
        """Code between two calls has changed what the last commit, `last`, recorded."""
        parts = self._session.state.parts
        there = [p.name for p in parts if p.name in last.parts and not tensors(p)]
        values = {name: last.parts[name].data for name in there}
        self._committed = (step, plain.encode((values, last.draws)))

    def _remember(self, step: int, kind: int, entry: Entry, oldest: int, whole: bool) -> None:
        """Remember the small state of the start of a step in this process. `whole`: it has a record
        too."""
        kept = entry.kept(shards=False)
        if not whole:
            self._session.remembered = (step, kind, kept)
        if self._cursor.calls and kind == FINAL:
            self.starts = {s: e for s, e in self.starts.items() if s >= oldest} | {step: kept}

    def keep_between(self, step: int, at: int) -> None:
        """Memory is about to be put back to `step`, and the call of step `at` is under way: keep
        what code between the calls has made since."""
        if step < at == self.target and at not in self.returned:
            was = self._session.restorer.stood_in
            self.returned |= {s: (e, was) for s, e in self.starts.items() if step < s < at}
            self.returned[at] = self.between(at), was

    def between(self, step: int) -> Entry:
        """The start of the current `step`, as recorded or as it is in memory now."""
        session = self._session
        kept = session.entries.read(step)
        if kept is not None and kept[0] != PROVISIONAL:
            return entries.decode(kept[1], session.entries.seal, step)
        if step in self.starts:
            return self.starts[step]
        taken = self.collect(step, self.pace.every == 1)
        return self._entry(step, FINAL, taken).kept(shards=False)

    def _entry(self, step: int, kind: int, taken: Taken, after: bytes | None = None) -> Entry:
        """`after`: random numbers' states once its batch has been fetched, if one has been."""
        cursor, parts = self._cursor, taken.parts
        again = kind in (FINAL, PAUSED) and self._committed[0] == step
        fetch = None
        if after is not None and after != parts["random"].data:
            fetch = bytes(parts["random"].data)
            parts = parts | {"random": Content(after)}
        batch, previous, place = self.batches.known(step)
        entry = Entry(
            pass_number=cursor.pass_number,
            index=cursor.index,
            mark=taken.mark,
            structure=self._structure,
            parts=parts,
            fetch=fetch,
            pass_random=cursor.pass_random,
            loader=cursor.loader,
            batch=batch if kind == FINAL else None,
            previous=previous,
            place=place,
            calls=cursor.calls,
            committed=self._committed[1] if again else b"",
            plan=cursor.plan + (self._session.variables.ranges if cursor.calls else ""),
            epoch=cursor.epoch,
            ends=cursor.ends if kind == PASS_END else b"",
            draws=taken.draws,
            origins=b"" if self._draws.idle else self._draws.origins(),
            every=self.pace.every,
            orders=self._session.orders.present,
            replica_set=self._session.state.replicas.of,
        )
        if self._session.standing.mine:
            entry.nested = self._session.standing.nested(step, kind, entry)
        return entry

    def keep_entry(self, step: int, kind: int, entry: Entry) -> None:
        """Write the record of `step`. Where there is no room for it the job trains on; this process
        remembers what it can."""
        session = self._session
        imports.save()  # before the record that follows it to the keepers
        # a page of a gradient that was lost under the copy is zeros in it: that is no record
        whole = damage.Whole()
        buffers = entries.encode(entry, session.entries.seal, step)
        try:
            session.entries.write(step, kind, buffers, whole)
        except OSError as error:
            self._say_unrecorded(sum(map(len, buffers)), error)
            if not entry.parts[
                "gradients"
            ].memory:  # a copy would take the memory that is not there
                session.remembered = (step, kind, entry.kept(shards=False))
            return
        session.remembered = None
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

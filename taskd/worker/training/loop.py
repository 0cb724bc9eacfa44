"""The loop of a protected rank: hands out attempts; between them repairs, pauses, ends passes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from taskd import settings
from taskd.core.job.snapshots import PASS_END, PAUSED
from taskd.cython_api import damage, slot
from taskd.messages import from_rank
from taskd.messages.values import Position
from taskd.worker.discovery import carried, unsupported
from taskd.worker.discovery.loop_variables import NAME
from taskd.worker.repair.outcomes import LeftAlone, Resumed
from taskd.worker.repair.session import RepairSession
from taskd.worker.set_up import functions as set_up
from taskd.worker.set_up.results import NotTheSame
from taskd.worker.state import accelerator, loading, places
from taskd.worker.state.batches import Batches
from taskd.worker.state.entry import Entry
from taskd.worker.state.given import UnsupportedState, WouldDiverge
from taskd.worker.training import memory, position
from taskd.worker.training.attempt import Attempt, Ending
from taskd.worker.training.attempts import Attempts
from taskd.worker.training.cursor import Cursor
from taskd.worker.training.draws import Draws
from taskd.worker.training.epochs import Epochs
from taskd.worker.training.finite import FiniteCheck
from taskd.worker.training.recorder import Recorder
from taskd.worker.training.rejoin import NOWHERE, Load, Rejoin
from taskd.worker.training.sharing import Sharing
from taskd.worker.training.suspicion import Suspicion

NOT_LEFT = (
    "the attempt was not entered or not left: the loop's body must be `with attempt as step:`"
)


class Loop:
    """Runs a rank's passes. `batches`: those that `run` has drawn."""

    def __init__(self, session: RepairSession) -> None:
        self.session = session
        self.batches = Batches()
        self.cursor = Cursor()
        given = session.random, session.communicators.aside, session.variables.objects
        self.draws = Draws(*given, session.state.attributes.draw)
        self.recorder = Recorder(session, self.cursor, self.batches, self.draws)
        self.rejoin = Rejoin(session, self.cursor, self.batches)
        self.epochs = Epochs(session, self.cursor, self.rejoin)
        self._suspicion = Suspicion(session)
        self.attempts = Attempts(session, self.cursor, self.recorder, self._suspicion)
        self.finite = FiniteCheck(session, self._suspicion)
        self.sharing = Sharing(session, self.attempts)
        first = session.agent.incarnation == 0  # a replacement's predecessor has looked
        tensors = partial(memory.tensors, session), partial(memory.contents, session)
        refuses = settings.refuses_carried(os.environ)
        self._carried = carried.Watch(*tensors, first, session.script, refuses)
        self._elastic = self._tells = settings.elastic(os.environ)
        self.start = 0  # the number that the script gives to the job's first step
        self._end: int | None = None  # the current pass ends before this step
        self._loads_from = -1  # the first step of the pass whose batch this process can load
        self._loader: Iterable[Any] | None = None  # of the current pass
        self._iterator: Iterator[Any] | None = None
        self._stateful = False  # the loader may say itself where it is

    def run(
        self, loader: Iterable[Any] | None, total: int | None
    ) -> Generator[Attempt, None, bool]:
        """Yield attempts at one pass over `loader`, or at the steps up to `total`. Returns whether
        the pass is over; if not, the rank is no longer protected."""
        session, cursor, attempts = self.session, self.cursor, self.attempts
        with self.refusing():
            self.epochs.pass_begins(self.attempts.abandoned)
        cursor.plan = self.plan(loader, total)
        try:
            set_up.plan(cursor.plan, cursor.pass_number <= self.rejoin.target)
        except NotTheSame as error:
            self.attempts.refused(error)
            raise
        if loader is not None:
            if accelerator.skips(loader):
                raise UnsupportedState(
                    "job.batches() cannot repeat a pass of skip_first_batches(): draw the first"
                    " batches and drop them, or begin with the next epoch"
                )
            session.random.watch(places.generators(loader))
            session.state.leave(loader)
        if not cursor.calls:
            self.look_at_variables()
        # a replacement skips the passes that its predecessor had finished
        if cursor.pass_number < self.rejoin.target:
            self.epochs.skips()
            cursor.pass_number += 1
            return True
        set_up.stop(cursor.calls)
        if why := unsupported.joins(session.state.ddps, session.state.optimizers.values()):
            self.batches.clear()
            self._iterator = None if loader is None else iter(loader)
            self.attempts.give_up(why)
            return False
        known, watch = self.attempts.inelastic, self.attempts.watch
        known.loops, known.loads = True, loader is not None
        self._end, self._loads_from = None, -1
        if total is not None:
            self._end = max(total - self.start, 0)
            session.agent.report(from_rank.StepsPlanned, self._end)
        self.batches.clear()
        self.recorder.pace.begin_pass(self.attempts.step)
        session.state.attributes.pass_begins()
        # asked where it is, a loader may begin a pass; a replacement's is taken from its record
        asked = loader is not None and cursor.pass_number != self.rejoin.target
        place = places.place(loader) if asked else b""
        cursor.begin_pass(session.random.snapshot(), place)
        if not self._begin_pass(loader):
            return True
        if self._elastic or session.standing.shrunk:
            watch.install()
        try:
            while not attempts.alone:
                step = attempts.step
                if (
                    slot.interruption() > session.built_at
                    or self._suspicion.present
                    or (damage.spoiled() and self._suspicion.spoiled(step))
                ):
                    self._repair()
                    continue
                if self._end is not None and step >= self._end:
                    if self._leave_pass():
                        return True
                    continue
                if slot.pauses(step):
                    self._pause()
                    continue
                states = self._fetch(step)
                if states is None or not attempts.begin(*states):
                    continue
                number, loads = step + self.start, self._iterator is not None
                ended = self._ended if self._carried.due or self._tells else attempts.ended
                try:
                    value = (number, self.batches.batch(step)) if loads else number
                    yield Attempt(step, value, ended)
                except GeneratorExit:  # break, return or an exception
                    if not attempts.abandoned and not sys.is_finalizing():
                        slot.progress(attempts.step, slot.LEFT)
                        cursor.left = True
                        self.epochs.pass_ends()
                    self._end_pass()
                    raise
                if attempts.open:
                    raise RuntimeError(NOT_LEFT)
            return False
        finally:
            watch.over()
            set_up.again()

    def plan(self, loader: Iterable[Any] | None, total: int | None) -> str:
        """The pass that the script begins, as it is compared with other processes'."""
        what = "job.call" if self.cursor.calls else loading.plan(loader, total)
        what += self.cursor.item
        return f"{what}, first step {self.start}" if self.start else what

    def is_of(self, resumed: Resumed, plan: str, ranges: str | None = None) -> None:
        """See Rejoin.compare."""
        with self.refusing():
            self.rejoin.compare(resumed, plan, ranges)

    def look_at_variables(self, function: Callable[..., Any] | None = None) -> None:
        """Find the variables that the loop around this attempt carries; `function`: the one given
        to job.call. Raises WouldDiverge if that is not restored and TASKD_CARRIED=refuse."""
        if self.session.script is not None:
            self.session.script.look(loop=True)
        with self.refusing():
            self.session.variables.attach(function)
        if self.session.variables:
            self.session.state.add(NAME, self.session.variables)

    def end_at(self, step: int) -> None:
        """The pass that is being run ends before `step`."""
        self._end = step

    def rest(self) -> Iterator[Any] | None:
        """The rest of the current pass's loader, for a rank that is no longer protected."""
        return self._remaining(self._iterator) if self._iterator is not None else None

    def _remaining(self, iterator: Iterator[Any]) -> Iterator[Any]:
        step = self.attempts.step
        while step in self.batches:
            yield self.batches.pop(step)
            step += 1
        yield from loading.rest(iterator)

    # -- batches -----------------------------------------------------------------------------------

    def _begin_pass(self, loader: Iterable[Any] | None) -> bool:
        """Prepare the pass; return False if the job has moved on to a later pass meanwhile."""
        cursor, rejoin = self.cursor, self.rejoin
        iterator: Iterator[Any] | None = None
        if cursor.pass_number == rejoin.target:
            resumed = rejoin.dumped() or self.come_back()
            if resumed is None:
                cursor.pass_number += 1
                return False
            self.is_of(resumed, cursor.plan)
            iterator = rejoin.take_up(loader, resumed, self.draws)
            if resumed.kind == PASS_END:
                self._end = self.attempts.step
            self.epochs.joins(resumed.entry.ends if resumed.entry is not None else b"")
            rejoin.done()
        elif loader is not None:
            iterator = iter(loader)
        with self.refusing():
            where = cursor.pass_number, cursor.pass_random
            self.session.standing.pass_begins(loader is not None, *where)
        if iterator is not None:
            self._loads_from = self.attempts.step
        self._loader, self._iterator = loader, iterator
        self._stateful = hasattr(loader, "state_dict")
        return True

    def _fetch(self, step: int) -> tuple[bytes, bytes] | None:
        """The generators' states around the fetch of the step's batch, equal if there is no batch;
        None at the loader's end."""
        random = self.session.random
        before = random.snapshot()
        if self._iterator is None:
            return before, before
        oldest = self.recorder.pace.oldest(step)
        if step <= self.batches.newest and step in self.batches:
            before, after = self.batches.fetched(step)
            random.restore(after)  # as if it had just been fetched
        else:
            slot.progress(step, slot.FETCHING)
            state = loading.state_of(self._loader) if self._stateful else b""
            try:
                batch = self.session.state.attributes.draw(self._iterator)
            except StopIteration:
                self._end = step
                return None
            after = random.snapshot()
            try:
                self.batches.keep(step, batch, before, after, oldest, state)
            except WouldDiverge as error:
                self.attempts.refused(error)
                raise
        return before, after

    def restoring(self, step: int) -> None:
        """See repair/restore.py, Following."""
        if self.cursor.calls:
            self.recorder.keep_between(step, self.attempts.step)

    def restored(self) -> None:
        """Ranks that this one stands in for from now on come to where it is."""
        session, cursor = self.session, self.cursor
        if self.rejoin.target == NOWHERE:  # else they come when the loop is there
            session.standing.joins_pass(cursor.pass_number, cursor.pass_random)
            if session.standing.shrunk:
                self.attempts.watch.install()

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """What would diverge inside ends the job."""
        try:
            yield
        except WouldDiverge as error:
            self.attempts.refused(error)
            raise

    def _ended(self, error: BaseException | None) -> Ending:
        ending = self.attempts.ended(error)
        if self._tells and ending is Ending.COMMITTED:
            self._tells = False
            self.attempts.inelastic.draws = bool(self.draws)
            self.attempts.inelastic.tell()
        # looks for unprotected state that the script carries on
        if self._carried.due and ending in (Ending.COMMITTED, Ending.AGAIN):
            drawn = *self.draws.iterators(), *self.session.variables.drawn()
            with self.refusing():
                self._carried.committed([self._iterator, *drawn])
        return ending

    # -- between attempts --------------------------------------------------------------------------

    def _position(self, at_work: bool = False) -> tuple[Position, str]:
        parts = self.attempts, self.recorder, self._suspicion, self.finite
        return position.of(self.session, *parts, self._inelastic(), at_work)

    def holds(self) -> Position:
        """See repair/restore.py, Following."""
        return self._position(at_work=True)[0]

    def _inelastic(self) -> str:
        """Why no rank could stand in for another, "" if one could."""
        self.attempts.inelastic.draws = bool(self.draws)
        return self.attempts.inelastic.reason()

    def _repair(self) -> None:
        """Take part in a repair and set the loop to the step it resumes at."""
        slot.progress(self.attempts.step, slot.INTERRUPTED)
        self._follow(self.session.wait_for_orders(self._position, self))

    def _follow(self, outcome: object) -> bool:
        """Apply the outcome of a wait for orders; False if the loop continues where it is."""
        if isinstance(outcome, LeftAlone):
            self.attempts.give_up(outcome.reason, report=False)
        elif isinstance(outcome, Resumed):
            self._take_up(outcome)
        else:
            return False
        return True

    def _take_up(self, resumed: Resumed, report: bool = True) -> None:
        session, cursor, entry = self.session, self.cursor, resumed.entry
        session.settled()
        self._suspicion.settled()
        self.attempts.resume_at(resumed.step, resumed.plan if session.verifies else None, report)
        session.gradients.abandon()
        if entry is not None:
            here = entry.pass_number == cursor.pass_number
            if here and resumed.step >= self._loads_from:
                cursor.index = entry.index
            elif here and self.rejoin.target == NOWHERE:
                raise RuntimeError(
                    f"step {resumed.step} must be repeated, but this process resumed its loader at"
                    f" step {self._loads_from}: it is replaced"
                )
            elif resumed.kind != PASS_END and self.rejoin.target == NOWHERE:
                # this process cannot go back; the coordinator replaces it with one that can
                raise RuntimeError(
                    f"step {resumed.step} must be repeated, but this process has left its pass"
                )
        self.recorder.taken_back(resumed.step, entry)
        self._carried.repaired()

    def _leave_pass(self) -> bool:
        """Wait until the pass, committed here, is committed on every rank. Returns False if the
        loop was taken back."""
        session, step = self.session, self.attempts.step
        self.cursor.end_pass(self._loader)
        self.epochs.pass_ends()
        if not self.attempts.recorder_waits(step, PASS_END):
            return False
        slot.progress(step, slot.INTERRUPTED)
        session.copies.wait(session.built_at)
        session.agent.report(from_rank.RankFinished, step)
        outcome = session.wait_for_orders(self._position, self, release=step)
        self._follow(outcome)
        if isinstance(outcome, Resumed):
            return False
        self._end_pass()
        slot.progress(step, slot.COMMITTED)
        return True

    def _end_pass(self) -> None:
        self.cursor.pass_number += 1
        self.recorder.end_pass()

    def _pause(self) -> None:
        """Report that this rank is paused, and wait for the continue or for a repair. Its record is
        final, so no rank has to go back a step."""
        session, step = self.session, self.attempts.step
        slot.progress(step, slot.PAUSED)
        if not self.attempts.recorder_waits(step, PAUSED):
            return
        session.agent.report(from_rank.RankPaused, step)
        if not self._follow(session.wait_for_orders(self._position, self, paused=step)):
            slot.progress(step, slot.COMMITTED)

    # -- a new process of a rank -------------------------------------------------------------------

    def begin_at(self, step: int, kind: int, entry: Entry, load: Load) -> None:
        """Begin a rank's first process from a dump: its loops skip the finished passes. `load`:
        reads its replicated state again."""
        self._take_up(self.rejoin.from_dump(step, kind, entry, load), report=False)
        self.recorder.keep_entry(step, kind, entry)

    def come_back(self) -> Resumed | None:
        """Announce a replacement and join its repair: see `Rejoin.announce`."""
        resumed = self.rejoin.announce(self)
        if resumed is not None:
            set_up.came_back(between=resumed.kind == PASS_END)
            self._take_up(resumed)
        return resumed

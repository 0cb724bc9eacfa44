"""Loops that call a function for each step: `job.call(train_step, ...)`.

A call is an attempt that is repeated before it returns. When all ranks go back a step, the previous
call is repeated first, with its own arguments; its result, already returned, is dropped. The
script's code between two calls runs once: its effect on protected state is restored from this
rank's record. A replacement has not made the earlier calls; it runs the code before its first call
again, from the state at the last commit.
"""

from __future__ import annotations

import logging
import sys
import types
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from taskd.core.job.snapshots import PROVISIONAL
from taskd.worker.repair.outcomes import Resumed
from taskd.worker.set_up import functions as set_up
from taskd.worker.state import content, plain, replicas
from taskd.worker.state.kept import EARLY, Keeper, Kept
from taskd.worker.state.part import Content
from taskd.worker.training.attempt import Attempt
from taskd.worker.training.loop import Loop
from taskd.worker.training.rejoin import NOWHERE

log = logging.getLogger("taskd.worker")


@dataclass(frozen=True)
class Stopped:
    """Stands for the result of a function that has raised StopIteration: its data have ended, and
    its step counts like any other."""

    error: StopIteration


def run(function: Callable[..., Any], args: Any, keywords: Any) -> Any:
    """The function's result, or Stopped."""
    try:
        return function(*args, **keywords)
    except StopIteration as error:
        return Stopped(error)


def give(result: Any) -> Any:
    """Return the result, or raise the StopIteration that it represents."""
    if isinstance(result, Stopped):
        raise result.error
    return result


@dataclass(frozen=True)
class _Call:
    """`given`: arguments and keywords."""

    function: Callable[..., Any]
    given: Kept

    def __call__(self) -> Any:
        return run(self.function, *self.given.value)


class Calls:
    """The calls of a protected rank."""

    def __init__(self, loop: Loop) -> None:
        self._loop, self._recorder = loop, loop.recorder
        self._attempts: Generator[Attempt, None, bool] | None = None
        self._calls: dict[int, _Call] = {}  # by step: those that may be repeated
        self._rewritten: set[int] = set()  # steps before which that code has changed parameters
        self._given: Resumed | None = None  # to a replacement that has not made a call yet
        self._keeper = Keeper("the arguments of job.call", content.ARGUMENTS)
        # what has been looked at, in the frame of the script's loop, and the last of it
        self._looked: dict[Any, Any] = {}
        self._at: Any = None
        self._made = 0  # calls since the last finish()
        self._after: list[Callable[[], Any]] = []  # to be run when the step is committed

    def place(self) -> int:
        """The step of the next call. A replacement takes part in its repair here."""
        attempts = self._loop.attempts
        set_up.step_asked()
        if self._loop.rejoin.calls:
            self._begin()
        elif not attempts.open:
            attempts.before_calls()
        return attempts.step

    def call(self, function: Callable[..., Any], *args: Any, **keywords: Any) -> tuple[bool, Any]:
        """(True, the result) of the call, committed; (False, None) if protection has ended."""
        self._look(function, sys._getframe(2))
        self._begin()
        step = self._recorder.target = self._loop.attempts.step
        with self._loop.refusing():
            call = _Call(function, self._keeper.keep((args, keywords)))
        self._arrive(step, call)
        oldest = self._recorder.pace.oldest(step)
        for kept in (self._calls, self._recorder.returned):
            for old in [s for s in kept if s < oldest]:
                del kept[old]
        self._rewritten = {s for s in self._rewritten if s >= oldest}
        self._calls[step] = call
        if call.given.print:
            self._loop.batches.note(step, call.given.print, oldest)
        self._made += 1
        for attempt in self._attempts or ():
            result = self._run(attempt)
            if attempt.done and attempt.step == step:
                return True, result
        return False, None

    def _look(self, function: Callable[..., Any], caller: types.FrameType) -> None:
        """Find the variables of the loop that makes this call: once for each line of it and each
        function, as long as its frame runs."""
        variables = self._loop.session.variables
        code = getattr(function, "__code__", type(function))
        frame: types.FrameType | None = caller
        while frame is not None and id(frame) != variables.frame:
            frame = frame.f_back
        at = (caller.f_code, code) if frame is None else (frame.f_lineno, code)
        if frame is None and variables.frame:  # that of another loop, which is over
            self._looked.clear()
        elif at == self._at:
            return
        self._at = at
        if at in self._looked:
            variables.places = self._looked[at]
            return
        self._loop.cursor.calls = True
        self._loop.look_at_variables(function)
        self._looked[at] = variables.places

    def after(self, function: Callable[[], Any]) -> bool:
        """Run `function` once the call under way is committed; False if none is."""
        runs = self._loop.attempts.open and self._attempts is not None  # not in a loop of attempts
        if runs:
            self._after.append(function)
        return runs

    def finish(self) -> bool:
        """Wait until all calls are committed on every rank. False if protection has ended."""
        if self._loop.rejoin.calls:
            self._begin()
        if self._made or self._given is not None:
            step = self._recorder.target = self._loop.attempts.step
            if self._given is None:
                self._loop.end_at(step)
            else:
                self._attempts = self._loop.run(None, step)
            for attempt in self._attempts or ():
                self._run(attempt)
            self._given, self._made, self._attempts = None, 0, None
        return not self._loop.attempts.alone

    def repeated(self) -> list[_Call]:
        """The calls that have returned and are to be repeated, for a rank that is no longer
        protected."""
        begin = self._loop.attempts.step
        return [
            call
            for step, call in sorted(self._calls.items())
            if begin <= step < self._recorder.target
        ]

    # -- one call ----------------------------------------------------------------------------------

    def _begin(self) -> None:
        if self._attempts is not None:
            return
        rejoin, cursor = self._loop.rejoin, self._loop.cursor
        if self._loop.epochs.inside:
            raise RuntimeError(
                "job.call() cannot be used inside a loop over job.epochs(): loop over"
                " range(job.step, total), where a replacement begins with its own step"
            )
        cursor.calls = True
        if rejoin.target != NOWHERE:
            if not rejoin.calls:
                raise RuntimeError(
                    "the rank's previous process was in job.steps() or job.batches(), this one"
                    " calls job.call(): use one of them"
                )
            resumed = None
            while resumed is None:
                cursor.pass_number = rejoin.target
                resumed = rejoin.dumped() or self._loop.come_back()
            self._loop.is_of(resumed, self._loop.plan(None, None))
            rejoin.begins = self._given = resumed
            rejoin.calls = False
            self._go_before(resumed)
        self._attempts = self._loop.run(None, None)

    def _go_before(self, resumed: Resumed) -> None:
        """Undo what the previous process did between its calls: this one does it again."""
        entry, session = resumed.entry, self._loop.session
        assert entry is not None
        draws = entry.draws
        if entry.committed:
            values, draws = plain.decode(entry.committed)
            session.state.parts.put({name: Content(data) for name, data in values.items()})
        self._loop.draws.begin_at(resumed.step, draws, entry.origins)

    def _arrive(self, step: int, call: _Call) -> None:
        """Check what the script has done since the last call, or since this process came back."""
        if self._recorder.refused or self._loop.attempts.alone:
            return
        clean = self._recorder.is_clean(step)
        if self._given is not None:
            self._meet(self._given, call, clean)
            self._given = None
        elif not clean:
            self._rewritten.add(step)
            if self._made < EARLY:
                log.warning(
                    "parameters or optimizer state change between two calls of job.call, so a fault"
                    " may replace processes that could be kept: change them inside the function"
                )

    def _meet(self, given: Resumed, call: _Call, clean: bool) -> None:
        """A replacement makes its first call: it must be the one that its predecessor made. Raises
        WouldDiverge, RuntimeError."""
        session = self._loop.session
        # a job that goes on from a dump may have another end
        ranges = session.variables.ranges if session.agent.incarnation else None
        self._loop.is_of(given, self._loop.plan(None, None), ranges)
        entry = given.entry
        if entry is None or given.kind == PROVISIONAL:
            return  # the predecessor had not got that far
        why = "" if clean else "parameters or optimizer state are changed between two calls"
        if entry.draws and self._loop.draws.places() != entry.draws:
            why = "other batches were drawn between two calls"
        session.put(entry)
        if entry.batch is not None and entry.batch != call.given.print:
            why = "its arguments are other tensors"
        if why:
            raise RuntimeError(
                f"the call of step {given.step} cannot be repeated as the rank's previous process"
                f" made it: {why}. Do it inside the function that is given to job.call, and draw"
                " batches there from job.iterate(...)"
            )

    def _run(self, attempt: Attempt) -> Any:
        """Run one attempt's call; None if it failed."""
        step = attempt.step
        call = self._calls.get(step)
        if call is None:
            raise RuntimeError(
                f"step {step} must be repeated, but this process has not called it: it is replaced"
            )
        # before the call is repeated: after it, ranks would be at different steps again, and be
        # replaced in turns without an end
        if step < self._recorder.target and (
            step + 1 in self._rewritten or step + 1 not in self._recorder.returned
        ):
            raise RuntimeError(
                f"step {step} must be repeated, but parameters or gradients were changed after its"
                " call: this process is replaced"
            )
        call.given.again(f"an argument of step {step}")
        result, self._after = None, []
        try:
            with attempt:
                result = call()
        except BaseException:
            if self._attempts is not None:
                self._attempts.close()
                self._attempts = None
            raise
        if attempt.done and step < self._recorder.target:
            self._go_on(step + 1)
        if attempt.committed:
            for function in self._after:
                function()
        return result

    # -- going back --------------------------------------------------------------------------------

    def _go_on(self, step: int) -> None:
        """The call before `step` is repeated: what the script then did is put back."""
        session = self._loop.session
        entry, stand_ins = self._recorder.returned.pop(step)
        session.put(entry)
        if stand_ins == session.stand_ins:  # else numbers were added in another order
            replicas.check(session.state.replicated_rows, entry.mark, step)

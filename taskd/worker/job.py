"""The user's loop: `for attempt in job.steps(n): with attempt as step:`, and what is recorded so
that an attempt can be repeated.

At the start of an attempt the rank's private state is recorded and its stripe of the replicated
state copied; at its end (commit) the private state again, provisionally. What an attempt did is
undone by going back to these records; `conversation.py` does it when a pause was asked for. In a
process without an agent all of this is left out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

import torch

from taskd.core.snapshots import PASS_END
from taskd.cython_api import core
from taskd.devices import DeviceLost, Fault, FaultType
from taskd.messages import from_rank
from taskd.messages.values import Plan, Position
from taskd.worker import carried, damage, loading, verify
from taskd.worker.batches import Batches
from taskd.worker.conversation import Conversation, LeftAlone, Released, Resumed
from taskd.worker.entry import Entry
from taskd.worker.patience import Patience
from taskd.worker.recorder import Recorder
from taskd.worker.rejoin import NOWHERE, Rejoin
from taskd.worker.verify import Forward

log = logging.getLogger("taskd.worker")

# seconds that a replacement may take to load again what its predecessor had loaded in a pass
LOADING = 3600.0
END = object()  # what comes after a loader's last batch
DAMAGED = 2  # a bit of core.spoiled(): a memory page was lost


class Interrupted(BaseException):
    """A pause was asked for while this rank was about to change its parameters. Not an Exception:
    user code must not catch it."""


class NotFinite(Interrupted):
    """`check` found a result that is not finite: the attempt ends here."""


class Attempt:
    """One try at one step. A context manager; gives the step, or (step, batch). `committed` tells
    how it ended."""

    __slots__ = ("_job", "_value", "committed", "step")

    def __init__(self, job: Job, step: int, value: Any) -> None:
        self._job, self._value, self.step, self.committed = job, value, step, False

    def __enter__(self) -> Any:
        return self._value

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if error is None:
            try:
                self._job.compare()
            except Exception as failed:
                return self._job._failed(failed)
            self.committed = self._job._commit()
            if self.committed:
                self._job._look_around()
            return False
        return self._job._failed(error)


class Job:
    """A training job as one of its ranks sees it; made by `taskd.protect`. `step` is the next one
    to be handed out."""

    def __init__(self, conversation: Conversation | None) -> None:
        self.step = 0
        # the script has left an attempt for good, by an exception or sys.exit()
        self.abandoned = False
        self._line = conversation
        self._batches = Batches()
        self._patience = Patience()
        self.recorder: Recorder  # of a protected rank
        self.rejoin: Rejoin
        self._end: int | None = None  # the present pass is over before this step
        self._open = False  # inside an attempt
        self._gated = False
        self._updates = 0  # optimizer steps in this attempt
        self._plan: Plan | None = None  # of a repair whose first forward is to be compared
        self._forward: Forward | None = None
        self._loads_from = -1  # the first step of the pass whose batch this process can have
        self._resumed_at = -1  # the step that the last repair went back to
        self._iterator: Iterator[Any] | None = None  # of the present pass
        self._carried = carried.Watch(lambda: self.recorder.protected_tensors())
        self._told = True  # the first commit after a resume is reported
        self._suspect = False  # something failed here, which is being told or has been
        self._fault: Fault | None = None  # what the device said about it
        self._attempt = 0  # stamp of what is allocated: odd inside an attempt
        self._cut: int | None = None  # stamp of the attempt that ended without a commit
        self._collectives = 0  # begun before this attempt
        self._once: dict[str, list[Callable[[], object]]] = {"begun": [], "updating": []}
        self._checked = -1  # the last step whose result was not finite
        self._diverged = False  # results are not finite, and not by the machine's doing
        if conversation is not None:
            self.recorder = Recorder(conversation, self._batches)
            self.rejoin = Rejoin(conversation, self.recorder, self._batches, self._patience)
            for optimizer in conversation.state.optimizers.values():
                optimizer.register_step_pre_hook(self._before_update)
            self._patience.while_compiling()

    @property
    def protected(self) -> bool:
        """Whether a fault in this job will be repaired."""
        return self._line is not None

    # -- the loops ---------------------------------------------------------------------------------

    def steps(self, total: int) -> Iterator[Attempt]:
        """Attempts at the steps from `self.step` (0 at first) to `total` - 1. An attempt that
        failed is handed out again."""
        if type(total) is not int or total < 0:
            raise ValueError(f"steps({total!r}): the number of steps must be an int of at least 0")
        return self._run(None, total)

    def batches(self, loader: Iterable[Any]) -> Iterator[Attempt]:
        """Attempts at one pass over `loader`; each gives (step, batch), `step` counting on over
        passes.

        The batch is kept until its step is committed everywhere and handed out again if the attempt
        is repeated.
        """
        return self._run(loader, None)

    def _run(self, loader: Iterable[Any] | None, total: int | None) -> Iterator[Attempt]:
        if self._line is None:
            yield from self._plain(loader, total)
            return
        if loader is not None:
            self._line.random.watch(loading.generators(loader))
        recorder, rejoin = self.recorder, self.rejoin
        # a replacement passes over what its predecessor had finished
        if recorder.pass_number < rejoin.target:
            recorder.pass_number += 1
            return
        self._end, self._loads_from = total, -1
        self._batches.clear()
        recorder.new_pass(
            self._line.random.take(), loading.place(loader) if loader is not None else b""
        )
        iterator: Iterator[Any] | None = None
        if recorder.pass_number == rejoin.target:
            resumed = rejoin.begins or self.come_back()
            if resumed is None:  # the job has gone on to a later pass meanwhile
                recorder.pass_number += 1
                return
            iterator = rejoin.take_up(loader, resumed)
            if resumed.kind == PASS_END:
                self._end = self.step
            rejoin.done()
            # the manager could not be kept; impossible for a replacement to go on alone
            if self._line is None:
                raise RuntimeError("the repair of this rank was given up")
        elif loader is not None:
            iterator = iter(loader)
        if iterator is not None:
            self._loads_from = self.step
        self._iterator = iterator
        while True:
            if core.pause_number() > self._line.era or self._suspect or self._is_spoiled():
                self._repair()
                if self._line is None:
                    yield from self._plain_rest(iterator, total)
                    return
                continue
            if self._end is not None and self.step >= self._end:
                if self._leave_pass():
                    return
                continue
            hold = core.hold_step()
            if hold is not None and self.step >= hold:
                self._stand()
                continue
            before = after = self._line.random.take()
            if iterator is not None and self.step in self._batches:
                # as if it had been fetched now
                self._line.random.put(self._batches.fetched(self.step)[1])
            elif iterator is not None:
                core.progress(self.step, core.FETCHING)
                try:
                    batch = next(iterator)
                except StopIteration:
                    self._end = self.step
                    continue
                self._batches.keep(self.step, batch, before, self._line.random.take())
            if iterator is not None:
                before, after = self._batches.fetched(self.step)
            if not self._begin(before, after):
                continue
            value = (
                (self.step, self._batches.batch(self.step)) if iterator is not None else self.step
            )
            attempt = Attempt(self, self.step, value)
            try:
                yield attempt
            except GeneratorExit:
                # break, return or an exception: nothing is waited for here, the others may not be
                # leaving
                recorder.next_pass()
                raise
            if self._open:  # the body did not use `with attempt`
                raise RuntimeError(
                    "an attempt was not entered or not left: the loop's body must be `with attempt"
                    " as step:`"
                )

    def _plain(self, loader: Iterable[Any] | None, total: int | None) -> Iterator[Attempt]:
        yield from self._plain_rest(iter(loader) if loader is not None else None, total)

    def _plain_rest(self, iterator: Iterator[Any] | None, total: int | None) -> Iterator[Attempt]:
        while total is None or self.step < total:
            value: Any = self.step
            if iterator is not None:
                try:
                    value = (
                        self.step,
                        (
                            self._batches.pop(self.step)
                            if self.step in self._batches
                            else next(iterator)
                        ),
                    )
                except StopIteration:
                    return
            yield Attempt(self, self.step, value)

    # -- one attempt -------------------------------------------------------------------------------

    def _begin(self, before: bytes, after: bytes) -> bool:
        """Record the start of `self.step`; False when its record cannot be trusted. `before` and
        `after`: the random numbers' states around the fetching of its batch, the same where there
        is none."""
        line = self._line
        assert line is not None
        # a replacement's parent is the zygote, so that nothing else tells it of the launcher's end
        line.channel.check()
        step = self.step
        if not self.recorder.begin(step, before, after):
            return False
        self._attempt += 1
        core.attempt(self._attempt)
        self._collectives = line.communicators.begun()
        self.recorder.listen()
        self._open, self._gated, self._updates = True, False, 0
        core.progress(step, core.COMPUTING)
        core.started(step + 1)
        hold = core.hold_step()
        if hold is not None and step >= hold:  # it came when this step was begun already
            line.channel.send(from_rank.RankPassed(line.rank, line.incarnation, step))
        if self._plan is not None:
            self._forward = Forward(line, self._plan, self._differs)
        self._happen("begun")
        return True

    def _differs(self, why: str) -> None:
        """The repaired state is not what a replica has: the attempt ends here."""
        line = self._line
        assert line is not None
        self._suspect = True
        line.channel.send(
            from_rank.RankFaulted(line.rank, line.incarnation, self.step, from_rank.OTHER, why)
        )
        raise Interrupted

    def compare(self) -> None:
        """Raises what a collective raises."""
        if self._line is not None and self._open:
            self.recorder.compare(self.step)

    def _look_around(self) -> None:
        """After an early commit: what does the script carry on that is not protected? Its
        predecessor has looked for a replacement."""
        line = self._line
        if line is not None and line.incarnation == 0:
            self._carried.committed([self._iterator])

    def _commit(self) -> bool:
        """The attempt's body ended normally. False: a pause came in between, so it is not certain
        that every collective in it did what it should, and the step will be repeated."""
        line = self._line
        if line is None:
            self.step += 1
            return True
        if not self._gated:
            self._gate(raising=False)
        self._close()
        if core.pause_number() > line.era or self._is_spoiled():
            return False
        random, own = self.recorder.look(self.step + 1)
        if self._is_spoiled():  # by the last look at what is now the record of the next step
            return False
        self._cut = self._plan = None
        self._updates = 0
        self.step += 1
        self.recorder.commit(self.step, random, own)
        core.progress(self.step, core.COMMITTED)
        if not self._told:
            self._told = True
            line.channel.send(
                from_rank.StepCommitted(
                    line.rank, line.incarnation, line.communicators.generation, self.step - 1
                )
            )
        return True

    def _failed(self, error: BaseException) -> bool:
        """The attempt's body raised. True: a fault, the loop goes on to the repair. False: the
        script's own affair."""
        line = self._line
        if line is None:
            return False
        fault = line.device.recognise(error) if isinstance(error, Exception) else None
        if fault is not None and not fault.stopped:
            # also where a pause has come meanwhile: what the device has lost must be known then
            self._fault = fault
        if isinstance(error, Interrupted) or (
            isinstance(error, Exception) and core.pause_number() > line.era
        ):
            self._close()
            if core.pause_number() <= line.era and not self._suspect:
                self._is_spoiled()
            return True
        if isinstance(error, Exception) and core.spoiled():
            self._close()
            return self._is_spoiled()
        if fault is not None:
            self._close()
            self._tell(fault)
            return True
        # sys.exit() too: the others wait for this rank, whatever its exit code
        if not isinstance(error, GeneratorExit):
            line.channel.send(
                from_rank.RankRaised(line.rank, line.incarnation, self.step, _text(error))
            )
        self.abandoned = True
        return False

    def _before_update(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Optimizer hook: parameters are about to change. Nobody may do that before the start of
        the step is safe on the node."""
        if self._line is None or not self._open:
            return
        self._line.gradients.updating(optimizer)
        if self._line.gradients.broken and self._resumed_at == self.step:
            self._go_further_back()
        self._updates += 1
        if not self._gated:
            self._gate(raising=True)
            core.progress(self.step, core.UPDATING)
        self._happen("updating")

    def _go_further_back(self) -> None:
        """This step was repeated from records that lack gradients which the script now uses: it
        ends here, and the step before is repeated, after which they are recorded."""
        line = self._line
        assert line is not None
        self._suspect = True
        text = (
            "the script uses gradients of the step before, which it has always cleared so far; that"
            " step is repeated"
        )
        line.channel.send(
            from_rank.RankFaulted(line.rank, line.incarnation, self.step, from_rank.OTHER, text)
        )
        raise Interrupted

    def _gate(self, raising: bool) -> None:
        line = self._line
        assert line is not None
        # a pause ends the wait, and the agent asks for one when a rank dies
        if core.wait_started(self.step + 1, line.era) and not core.spoiled():
            self._gated = True
        elif raising:
            raise Interrupted

    def _close(self) -> None:
        """The attempt's body is over, one way or the other."""
        self._open, self._cut = False, self._attempt
        if self._forward is not None:
            self._forward.stop()
            self._forward = None
        self._attempt += 1
        core.attempt(self._attempt)

    def _is_spoiled(self) -> bool:
        """Whether what this rank has computed cannot be used: a connection broke in the middle of a
        message, or a memory page was lost."""
        spoiled = core.spoiled()
        if spoiled and not self._suspect:
            self._suspect = True
            if not spoiled & DAMAGED:  # of a lost page the agent tells
                self._tell_collective("a connection broke in the middle of a message")
        return bool(spoiled)

    def _tell(self, fault: Fault) -> None:
        """The device, or its collective library, has failed: say so, and wait for the pause that
        will follow."""
        line = self._line
        assert line is not None
        self._suspect = True
        if fault.stopped:
            return  # by our own order: the pause is on its way
        if fault.type is FaultType.NETWORK:
            self._tell_collective(fault.text)
        else:
            line.channel.send(
                from_rank.RankFaulted(
                    line.rank,
                    line.incarnation,
                    self.step,
                    int(fault.type),
                    f"{fault.name}: {fault.text}",
                )
            )

    def _tell_collective(self, text: str) -> None:
        line = self._line
        assert line is not None
        line.channel.send(from_rank.CollectiveFailed(line.rank, line.incarnation, self.step, text))

    def _happen(self, when: str) -> None:
        """Faults on purpose that were asked for by another thread."""
        if self._once[when]:
            self._once[when], due = [], self._once[when]
            for action in due:
                action()

    def when_begun(self, action: Callable[[], object]) -> None:
        """Have the training thread call `action` when the next attempt has begun."""
        self._once["begun"].append(action)

    def when_updating(self, action: Callable[[], object]) -> None:
        """Have the training thread call `action` when the next update of the parameters begins."""
        self._once["updating"].append(action)

    def collectives(self) -> int:
        """How many collectives have been begun in this attempt; 0 between two."""
        return (
            self._line.communicators.begun() - self._collectives
            if self._line is not None and self._open
            else 0
        )

    # -- what the script may say -------------------------------------------------------------------

    def long_operation(self, name: str, seconds: float = 1800.0) -> AbstractContextManager[None]:
        """`with job.long_operation("checkpoint"):` inside, this rank is not taken for hung, for up
        to `seconds`.

        For what takes much longer than the usual step now and then and makes no progress that taskd
        can see. Compilation by torch.compile is noticed without it. `name` is for the reader.
        Raises ValueError for `seconds` that are not above 0.
        """
        if not seconds > 0:
            raise ValueError(
                f"long_operation({name!r}, seconds={seconds!r}): seconds must be above 0"
            )
        return self._patience.extended(seconds if self._line is not None else 0.0)

    def check(self, result: torch.Tensor | float) -> bool:
        """Whether `result`, a loss, is finite. Inside an attempt, before the update.

        When it is not, the attempt ends here and is repeated once, this rank's training state taken
        from its replicas: memory or a computing unit may have failed without saying so. When the
        repeated attempt has no finite result either, it was not the machine: that is logged, and
        False returned. Without protection it only looks.
        """
        finite = bool(torch.isfinite(torch.as_tensor(result)).all())
        line = self._line
        if finite or line is None or not self._open:
            self._diverged = self._diverged and not finite
            return finite
        if not self._diverged and self.step in (self._checked, line.entries.marked()):
            self._diverged = True
            text = (
                "rank %d: the result of step %d is not finite again, with the replicas' state: it"
                " is not the machine's doing"
            )
            log.error(text, line.rank, self.step)
        if self._diverged:
            return False
        self._checked = self.step
        line.entries.mark(self.step)  # a replacement must not ask for the same once more
        self._suspect = True
        text = "the result is not finite; repeated once with the replicas' state"
        line.channel.send(
            from_rank.RankFaulted(line.rank, line.incarnation, self.step, from_rank.OTHER, text)
        )
        raise NotFinite

    # -- between attempts --------------------------------------------------------------------------

    def _position(self) -> tuple[Position, str]:
        """Where this rank stands, and why its process cannot go on, "" if it can."""
        line = self._line
        assert line is not None
        final, provisional = line.entries.steps()
        found = damage.survey(core.damages(), line.accepted, line.state, line.stripes, self._cut)
        if line.stripes is not None:
            for begin, end in found.stripes:
                line.stripes.forget_lost(begin, end)  # written again when the step is repeated
        unfit, lost = found.unfit, found.state
        try:
            lost = line.device.clean(self._fault) == "state" or lost
        except DeviceLost as error:
            unfit = unfit or str(error)
        clean = (
            self.step
            if self._updates == 0 and not lost and self.recorder.is_clean(self.step)
            else None
        )
        # the step has used gradients that its record does not have: the step before is repeated
        if line.gradients.paused():
            log.warning(
                "rank %d: step %d went on with gradients of the step before", line.rank, self.step
            )
            clean, final, provisional = None, final - {self.step}, provisional - {self.step}
        stripes = line.stripes.steps() if line.stripes is not None else frozenset()
        doubted = self._checked == self.step
        return (
            Position(
                self.step,
                clean,
                final,
                provisional,
                stripes,
                frozenset(self.recorder.drifted),
                doubted,
            ),
            unfit,
        )

    def _repair(self) -> None:
        """Take part in a repair and set the loop to the step it resumes at."""
        line = self._line
        assert line is not None
        core.progress(self.step, core.PAUSED)
        outcome = line.hold(self._position)
        if isinstance(outcome, LeftAlone):
            self.leave_alone(outcome.reason)
        elif isinstance(outcome, Resumed):
            self._take_up(outcome)

    def _take_up(self, resumed: Resumed) -> None:
        line = self._line
        assert line is not None
        line.settled()
        self._suspect, self._open, self._told, self._fault = False, False, False, None
        self._updates, self._gated = 0, False
        self.step = self._resumed_at = resumed.step
        entry = resumed.entry
        line.gradients.abandon()
        plan = resumed.plan if line.verifies else None
        if plan is not None and (self._plan is None or verify.pair(plan)):
            # else the one before, whose forward was found different, is compared again
            self._plan = plan
        if entry is not None:
            if entry.pass_number == self.recorder.pass_number and resumed.step >= self._loads_from:
                self.recorder.index = entry.index
            elif entry.pass_number == self.recorder.pass_number and self.rejoin.target == NOWHERE:
                raise RuntimeError(
                    f"step {resumed.step} must be repeated, and this process took its loader up at"
                    f" step {self._loads_from}: it is replaced"
                )
            elif resumed.kind != PASS_END and self.rejoin.target == NOWHERE:
                # a replacement can go there, this process cannot; the coordinator gives it one
                raise RuntimeError(
                    f"step {resumed.step} must be repeated, but its loop was left with break before"
                    " all ranks had committed it"
                )
        self.recorder.taken_back(resumed.step, entry)
        self._carried.repaired()

    def _leave_pass(self) -> bool:
        """Every step of the pass is committed here: wait until it is everywhere. False: the loop
        was taken back."""
        line = self._line
        assert line is not None
        self.recorder.end_pass(self.step)
        core.progress(self.step, core.PAUSED)
        line.copies.wait(line.era)
        line.channel.send(from_rank.RankFinished(line.rank, line.incarnation, self.step))
        outcome = line.hold(self._position, release=self.step)
        if isinstance(outcome, Resumed):
            self._take_up(outcome)
            return False
        if isinstance(outcome, LeftAlone):
            self.leave_alone(outcome.reason)
        self.recorder.next_pass()
        core.progress(self.step, core.COMMITTED)
        return True

    def _stand(self) -> None:
        """Held on request: tell, and wait until told to go on, or until a fault has to be repaired.
        What would be done here before the step has been done: its record is final, so that nobody
        has to go back to the step before."""
        line = self._line
        assert line is not None
        core.progress(self.step, core.HELD)
        self.recorder.stand(self.step)
        line.channel.send(from_rank.RankHeld(line.rank, line.incarnation, self.step))

        def position() -> tuple[Position, str]:
            # a repair: it does not go on any more when the hold ends
            core.progress(self.step, core.PAUSED)
            return self._position()

        outcome = line.hold(position, standing=True)
        if isinstance(outcome, LeftAlone):
            self.leave_alone(outcome.reason)
        elif isinstance(outcome, Resumed):
            self._take_up(outcome)
        else:
            core.progress(self.step, core.COMMITTED)

    # -- a rank that starts anew -------------------------------------------------------------------

    def begin_at(self, step: int, kind: int, entry: Entry) -> None:
        """The first process of a rank, in a job that begins from a dump: the loops pass over what
        was finished."""
        self._take_up(self.rejoin.from_dump(step, kind, entry))
        self._told = True
        self.recorder.keep_entry(step, kind, entry)

    def come_back(self) -> Resumed | None:
        """Of a replacement: see `Rejoin.announce`."""
        resumed = self.rejoin.announce()
        if resumed is not None:
            self._take_up(resumed)
        return resumed

    def leave_alone(self, reason: str) -> None:
        """From now on nothing is protected."""
        log.warning("training goes on without protection: %s", reason)
        self._line = None

    # -- what others ask ---------------------------------------------------------------------------

    @property
    def line(self) -> Conversation | None:
        return self._line


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:300]


__all__ = ["Attempt", "Interrupted", "Job", "Released", "Resumed"]

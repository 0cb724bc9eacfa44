"""The attempts of a protected rank at its steps, one after the other: begun, let through the gate
to the update, committed or cut.

At the start of an attempt the rank's private state is recorded and its stripe of the replicated
state copied; at its end (commit) the private state again, provisionally. What an attempt did is
undone by going back to these records; `session.py` does it when an interruption was asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taskd.cython_api import allocations, damage, slot
from taskd.messages import from_rank
from taskd.worker import verify
from taskd.worker.attempt import Ending, Interrupted
from taskd.worker.recorder import Recorder
from taskd.worker.suspicion import Suspicion
from taskd.worker.trigger import Trigger
from taskd.worker.verify import Forward

if TYPE_CHECKING:
    import torch

    from taskd.messages.values import Plan
    from taskd.worker.session import RepairSession


class Attempts:
    """`step`: the one under way, or the next to be handed out. `open`: inside an attempt. `cut`:
    stamp of the attempt that ended without a commit. `abandoned`: the script has left an attempt
    for good, by an exception or sys.exit(). `begun`, `updating`: when the next attempt has begun,
    when the next update of the parameters begins."""

    def __init__(self, session: RepairSession, recorder: Recorder, suspicion: Suspicion) -> None:
        self._session, self._recorder, self._suspicion = session, recorder, suspicion
        self.step = 0
        self.open = self.abandoned = False
        self.cut: int | None = None
        self.begun, self.updating = Trigger(), Trigger()
        self._gated = False
        self._updates = 0  # optimizer steps in this attempt
        self._stamp = 0  # of what is allocated: odd inside an attempt
        self._collectives = 0  # begun before this attempt
        self._plan: Plan | None = None  # of a repair whose first forward is to be compared
        self._forward: Forward | None = None
        self._resumed_at = -1  # the step that the last repair went back to
        self._told = True  # the first commit after a resume is reported
        for optimizer in session.state.optimizers.values():
            optimizer.register_step_pre_hook(self._before_update)

    @property
    def updated(self) -> bool:
        """Whether the present attempt has begun to change the parameters."""
        return self._updates > 0

    def collectives(self) -> int:
        """How many collectives have been begun in this attempt; 0 between two."""
        return self._session.communicators.begun() - self._collectives if self.open else 0

    # -- one attempt -------------------------------------------------------------------------------

    def begin(self, before: bytes, after: bytes) -> bool:
        """Record the start of `self.step`; False when its record cannot be trusted. `before` and
        `after`: the random numbers' states around the fetching of its batch, the same where there
        is none."""
        session, step = self._session, self.step
        # a replacement's parent is the zygote, so that nothing else tells it of the launcher's end
        session.channel.check()
        if not self._recorder.begin(step, before, after):
            return False
        self._next_stamp()
        self._collectives = session.communicators.begun()
        self._recorder.listen()
        self.open, self._gated, self._updates = True, False, 0
        slot.progress(step, slot.COMPUTING)
        slot.started(step + 1)
        pause = slot.pause_step()
        if pause is not None and step >= pause:  # it came when this step was begun already
            session.channel.send(from_rank.RankPassed(session.rank, session.incarnation, step))
        if self._plan is not None:
            self._forward = Forward(session, self._plan, self._end_for)
        self.begun.fire()
        return True

    def ended(self, error: BaseException | None) -> Ending:
        """The attempt's body is over; `error`: what it raised."""
        if error is not None:
            return Ending.REPEATED if self._failed(error) else Ending.RAISED
        try:
            if self.open:
                self._recorder.compare(self.step)
        except Exception as failed:
            if self._failed(failed):
                return Ending.REPEATED
            raise
        return Ending.COMMITTED if self._commit() else Ending.REPEATED

    def _commit(self) -> bool:
        """False: an interruption came in between, so it is not certain that every collective in it
        did what it should, and the step will be repeated."""
        session = self._session
        if not self._gated:
            self._gate(raising=False)
        self._close()
        if slot.interruption() > session.built_at or self._suspicion.spoiled(self.step):
            return False
        random, own = self._recorder.look(self.step + 1)
        # by the last look at what is now the record of the next step
        if self._suspicion.spoiled(self.step):
            return False
        self.cut = self._plan = None
        self._updates = 0
        self.step += 1
        self._recorder.commit(self.step, random, own)
        slot.progress(self.step, slot.COMMITTED)
        if not self._told:
            self._told = True
            session.channel.send(
                from_rank.StepCommitted(
                    session.rank,
                    session.incarnation,
                    session.communicators.generation,
                    self.step - 1,
                )
            )
        return True

    def _failed(self, error: BaseException) -> bool:
        """True: a fault. False: the script's own affair."""
        session, suspicion = self._session, self._suspicion
        fault = suspicion.recognise(error)
        if isinstance(error, Interrupted) or (
            isinstance(error, Exception) and slot.interruption() > session.built_at
        ):
            self._close()
            if slot.interruption() <= session.built_at and not suspicion.present:
                suspicion.spoiled(self.step)
            return True
        if isinstance(error, Exception) and damage.spoiled():
            self._close()
            return suspicion.spoiled(self.step)
        if fault is not None:
            self._close()
            suspicion.tell(self.step, fault)
            return True
        # sys.exit() too: the others wait for this rank, whatever its exit code
        if not isinstance(error, GeneratorExit):
            text = f"{type(error).__name__}: {error}"[:300]
            session.channel.send(
                from_rank.RankRaised(session.rank, session.incarnation, self.step, text)
            )
        self.abandoned = True
        return False

    def _close(self) -> None:
        """The attempt's body is over, one way or the other."""
        self.open, self.cut = False, self._stamp
        if self._forward is not None:
            self._forward.stop()
            self._forward = None
        self._next_stamp()

    def _next_stamp(self) -> None:
        self._stamp += 1
        allocations.attempt(self._stamp)

    # -- the update --------------------------------------------------------------------------------

    def _before_update(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Optimizer hook: parameters are about to change. Nobody may do that before the start of
        the step is safe on the node."""
        if not self.open:
            return
        gradients = self._session.gradients
        gradients.updating(optimizer)
        # the step was repeated from records that lack gradients which the script now uses; when the
        # step before is repeated, they are recorded
        if gradients.broken and self._resumed_at == self.step:
            self._end_for(
                "the script uses gradients of the step before, which it has always cleared so far;"
                " that step is repeated"
            )
        self._updates += 1
        if not self._gated:
            self._gate(raising=True)
            slot.progress(self.step, slot.UPDATING)
        self.updating.fire()

    def _gate(self, raising: bool) -> None:
        # an interruption ends the wait, and the agent asks for one when a rank dies
        if slot.wait_started(self.step + 1, self._session.built_at) and not damage.spoiled():
            self._gated = True
        elif raising:
            raise Interrupted

    def _end_for(self, why: str) -> None:
        """The attempt ends here: its results are not to be used."""
        self._suspicion.doubt(self.step, why)
        raise Interrupted

    # -- after a repair ----------------------------------------------------------------------------

    def resume_at(self, step: int, plan: Plan | None, report: bool = True) -> None:
        """`plan`: by which the state was restored, where its first forward is to be verified.
        `report` the first commit."""
        self.step = self._resumed_at = step
        self.open = self._gated = False
        self._updates = 0
        self._told = not report
        if plan is not None and (self._plan is None or verify.pair(plan)):
            # else the one before, whose forward was found different, is compared again
            self._plan = plan

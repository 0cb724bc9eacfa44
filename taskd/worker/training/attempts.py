"""The attempts of a protected rank: each is begun, passes the gate before the update, and is
committed or cut.

The start of an attempt records the rank's private state and copies its stripe of the replicated
state; the commit records the private state again, provisionally. An interrupted attempt is undone
by restoring these records (`repair/restore.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from taskd.cython_api import allocations, damage, slot
from taskd.messages import from_rank
from taskd.messages.values import Plan
from taskd.profiling.rank import Profile
from taskd.worker.elastic.inelastic import Inelastic
from taskd.worker.elastic.standing import REMEDY
from taskd.worker.elastic.watching import Watch
from taskd.worker.repair.session import RepairSession
from taskd.worker.repair.verify import Forward
from taskd.worker.state.given import UNSUPPORTED, Unwanted, WouldDiverge, unwanted
from taskd.worker.state.wrappers import is_built
from taskd.worker.training import graphs
from taskd.worker.training.agreement import OF_OTHERS, Agreement
from taskd.worker.training.attempt import Ending, Interrupted
from taskd.worker.training.cursor import Cursor
from taskd.worker.training.queued import Queued
from taskd.worker.training.recorder import Recorder
from taskd.worker.training.suspicion import Suspicion
from taskd.worker.training.trigger import Trigger


class Attempts:
    """Begins, gates and ends attempts. `step`: the current step, or the next to be handed out.
    `open`: inside one. `cut`: stamp of the last attempt that ended without a commit. `alone`: why
    this rank is no longer repaired, "" while it is. `abandoned`: the script has left an attempt by
    an exception or sys.exit(). `begun`, `updating`: fire when the next attempt, or the next update
    of the parameters, begins. `shared`: this attempt, or the last one, has called job.shares."""

    def __init__(
        self, session: RepairSession, cursor: Cursor, recorder: Recorder, suspicion: Suspicion
    ) -> None:
        self._session, self._recorder, self._suspicion = session, recorder, suspicion
        self._cursor, self._agreement = cursor, Agreement(session, cursor, recorder)
        self.step = 0
        self.open = self.abandoned = self.shared = self._gated = False
        self.alone = ""
        self.cut: int | None = None
        self.begun, self.updating = Trigger(), Trigger()
        self._updates = self._collectives = 0  # of this attempt; begun before it
        self._stamp = 0  # marks allocations; odd inside an attempt
        self._plan: Plan | None = None  # of a repair whose first forward will be compared
        self._forward: Forward | None = None
        self._resumed_at = -1  # where the last repair resumed
        self._reported = True  # whether the first commit after a resume has been reported
        self.profile: Profile | None = None  # once it has been switched on
        self.inelastic = Inelastic(session)
        self.watch = Watch(session.state, self._seen)
        self._queued = Queued(session)
        self._closures: list[torch.optim.Optimizer] = []  # whose updates have called one
        for optimizer in filter(is_built, session.state.optimizers.values()):
            optimizer.register_step_pre_hook(self._before_update)
        if session.device.runs_late:
            graphs.watch(session, self.updates_by_graph)

    @property
    def updated(self) -> bool:
        """Whether the current attempt has begun to change the parameters."""
        return self._updates > 0

    def collectives(self) -> int:
        """Begun in this attempt, less if it has destroyed a group; 0 between attempts."""
        begun = self._session.communicators.begun
        return max(begun() - self._collectives, 0) if self.open else 0

    # -- one attempt -------------------------------------------------------------------------------

    def begin(self, before: bytes, after: bytes) -> bool:
        """Record the start of `self.step`; return False if the record cannot be trusted. `before`,
        `after`: see Recorder.begin."""
        session, step = self._session, self.step
        # a replacement's parent is the zygote, so no signal reports that the launcher has ended
        if not session.agent.channel.attended:
            session.agent.channel.check()
        if self._agreement.unsettled:
            self._stamp, self.open = self._stamp + 1, True  # in an attempt of its own, for a fault
            if not self._together(self._agreement.settle):
                return False
            self._close()
        try:
            if not self._recorder.begin(step, before, after):
                return False
        except WouldDiverge as refused:
            self.refused(refused)
            raise
        except UNSUPPORTED as error:
            self.refuse(str(error))
        except RuntimeError as error:  # of a device that has been stopped
            self._stamp, self.open = self._stamp + 1, True  # as an attempt of its own
            if not self._failed(error):
                raise
            return False
        self._stamp += 1
        allocations.attempt(self._stamp)
        groups = session.communicators
        given = groups.generation, not (self.alone or groups.away), self._cursor.pass_number
        self._collectives, counts = groups.counts.begin(step, *given)
        self._queued.waiting.clock.at = 0
        self.open, self._gated, self.shared, self._updates = True, False, False, 0
        if session.stand_ins:
            session.standing.begin()
        if self.watch.installed:
            self.watch.begin()
        else:
            self.watch.begun = True
        try:
            slot.begun(step, session.built_at, counts, not self._recorder.publishing)
        except slot.Uneven as uneven:
            try:
                self._agreement.uneven(uneven, step)
            except WouldDiverge as refused:
                self.refused(refused)
                raise
        if self._recorder.publishing and session.stripes is not None:
            session.stripes.begun(step)
        if slot.pauses(step):  # too late from now on
            session.agent.report(from_rank.RankPassed, step)
        # with ranks away, what a forward computes may be another rank's share
        if self._plan is not None and not session.stand_ins:
            self._forward = Forward(session, self._plan, self._end_for)
        if self.begun.due:
            self.begun.fire()
        if self.profile is not None:
            self.profile.begins(step)
        return True

    def ended(self, error: BaseException | None) -> Ending:
        """End the attempt's body; `error`: the exception it raised."""
        standing, step = self._session.standing, self.step
        try:
            if self.open and standing.mine:
                standing.ended(error)
            due = self.open and self._agreement.due(self.step)
            if error is not None:
                if not self._failed(error):
                    return Ending.RAISED
            elif (not due or self._together(self._agreement.compare, self.step)) and self._commit():
                first = self._session.entries.announce(self.step - 1)
                return Ending.COMMITTED if first else Ending.AGAIN
        except WouldDiverge as refused:
            self.refused(refused)
            raise
        except RuntimeError as stopped:  # as in `begin`
            if self.abandoned or error is not None or not self._failed(stopped):
                raise
            if self.step > step:  # its record is not whole
                self.step, self._cursor.index, self._updates = step, self._cursor.index - 1, 1
        self._session.attempt_failed()
        return Ending.REPEATED

    def _together(self, does: Callable[..., None], *args: int) -> bool:
        """Do what all ranks do; False after a fault."""
        try:
            does(*args)
        except UNSUPPORTED as unsupported:
            why = self._recorder.refused or str(unsupported)
            self.give_up(why, report=not (self._recorder.refused or why == OF_OTHERS))
        except Exception as failed:
            if not self._failed(failed):
                raise
            return False
        return True

    def _commit(self) -> bool:
        """Commit the step; False if its collectives may be incomplete: it is repeated."""
        session = self._session
        if not self._gated:
            self._gate(raising=False)
        elif self._queued.late:
            self._queued.settle()
        self._close()
        if slot.interruption() > session.built_at or (
            damage.spoiled() and self._suspicion.spoiled(self.step)
        ):
            return False
        own = None
        try:
            if not self.alone and not self._recorder.refused:
                whole = self._recorder.pace.every == 1
                own = self._recorder.collect(self.step + 1, whole, late=False)
        except UNSUPPORTED as error:
            self.refuse(str(error))
        # the look above may have touched a lost page
        if damage.spoiled() and self._suspicion.spoiled(self.step):
            return False
        self.cut = self._plan = None
        self._updates = 0
        self.inelastic.shares = self.shared
        self.step += 1
        self._cursor.index += 1
        self._recorder.commit(self.step, own)
        slot.progress(self.step, slot.COMMITTED)
        if self.profile is not None:
            self.profile.commits(self.step - 1)
        if not self._reported:
            self._reported = True
            generation = session.communicators.generation
            session.agent.report(from_rank.StepCommitted, generation, self.step - 1)
        return True

    def _failed(self, error: BaseException) -> bool:
        """Return True for a fault, False for the script's own exception."""
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
            suspicion.report(self.step, fault)
            return True
        # also for sys.exit(): the other ranks wait for this one, whatever its exit code
        if isinstance(error, WouldDiverge):
            self.refused(error)
        elif not isinstance(error, GeneratorExit):
            text = f"{type(error).__name__}: {error}"[:300]
            session.agent.report(from_rank.RankRaised, self.step, text)
        self.abandoned = True
        return False

    def refused(self, error: RuntimeError) -> None:
        """End the job with the reason: continuing would give other numbers."""
        told = str(error)[:2000], True, isinstance(error, Unwanted)
        self._session.agent.report(from_rank.RankRaised, self.step, *told)
        self.abandoned = True

    def recorder_waits(self, step: int, kind: int) -> bool:
        """Recorder.wait; False if protection ends there."""
        try:
            if not self._recorder.refused:
                self._recorder.wait(step, kind)
        except UNSUPPORTED as error:
            self.refuse(str(error))
        if self._recorder.refused:
            self.give_up(self._recorder.refused, report=False)
        return not self.alone

    def before_calls(self) -> None:
        """See Recorder.before_calls."""
        try:
            if not self.alone:
                self._recorder.before_calls(self.step)
        except UNSUPPORTED as error:
            self.refuse(str(error))

    def refuse(self, why: str) -> None:
        """This rank cannot be recorded. It takes part in what ranks do together until they agree
        that none of them is protected: at the next comparison, or at the end of the pass."""
        self._check_whole(why)
        self._recorder.refused = why[:2000]
        self._session.agent.report(from_rank.NotProtected, self.step, self._recorder.refused)

    def give_up(self, why: str, report: bool = True) -> None:
        """From now on this rank and all others train unprotected. `report`: to the manager."""
        self._check_whole(why)
        self.alone = why[:2000]
        if report:
            self._session.agent.report(from_rank.NotProtected, self.step, self.alone)

    def _check_whole(self, why: str) -> None:
        if (error := unwanted(why)) is not None:
            self.refused(error)
            raise error
        if self._session.standing.shrunk:
            raise RuntimeError(f"the job trains without some ranks, which it cannot do so: {why}")

    def _close(self) -> None:
        """Mark the attempt's body as over, however it ended."""
        if not self.open:
            return
        self.open, self.cut = False, self._stamp
        if self._session.stand_ins or self.watch.installed:
            self._session.standing.over()
            self.watch.over()
        if self._forward is not None:
            self._forward.stop()
            self._forward = None
        self._stamp += 1
        allocations.attempt(self._stamp)

    # -- the update --------------------------------------------------------------------------------

    def _before_update(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], keywords: dict[str, Any]
    ) -> None:
        """Optimizer hook: wait until the start of the step is safe on the node."""
        if not self.open:
            return
        self._queued.updates()
        closure = (args[1] if len(args) > 1 else keywords.get("closure")) is not None
        session = self._session
        if session.standing.mine:
            session.standing.updates()
        session.gradients.updating(optimizer, closure)
        if closure and optimizer not in self._closures:
            self._closures.append(optimizer)
            optimizer.register_step_post_hook(self._after_closure)
        if session.gradients.broken:
            self._check_gradients()
        self._updates += 1
        if not self._gated:
            self._gate(raising=True)
            slot.progress(self.step, slot.UPDATING)
        if self.updating.due:
            self.updating.fire()

    def updates_by_graph(self) -> None:
        """A graph that was captured is about to update parameters."""
        if self.open:
            self._updates += 1
            if not self._recorder.refused:
                self.refuse(graphs.REFUSED)

    def _after_closure(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Look at the gradients again: the closure of this update has been called."""
        if self.open:
            self._session.gradients.updated(optimizer)
            if self._session.gradients.broken:
                self._check_gradients()

    def _check_gradients(self) -> None:
        """End an attempt that was repeated from records without the gradients that the script now
        uses: repeating the step before records them."""
        if self._resumed_at == self.step:
            self._end_for(
                "the script uses gradients of the step before, which it had always cleared so far;"
                " that step is repeated"
            )

    def _gate(self, raising: bool) -> None:
        try:
            # an interruption ends the wait; the agent raises one when a rank dies
            started = (not self._queued.late or self._queued.whole()) and slot.wait_started(
                self.step + 1, self._session.built_at
            )
        except slot.Uneven as uneven:
            self._agreement.uneven(uneven, self.step)
            started = True
        if started and not damage.spoiled():
            self._gated = True
        elif raising:
            raise Interrupted

    def _seen(self, what: str) -> None:
        """The script does what ranks that are away would have no part in. Raises WouldDiverge."""
        why = f"{what}: {REMEDY}"
        if self._session.standing.shrunk:
            error = WouldDiverge(f"elastic-training: {why}")
            if not self.open:
                self.refused(error)
            raise error
        self.inelastic.note(why)

    def _end_for(self, why: str) -> None:
        """End the attempt here and discard its results."""
        self._suspicion.doubt(self.step, why)
        raise Interrupted

    # -- after a repair ----------------------------------------------------------------------------

    def resume_at(self, step: int, plan: Plan | None, report: bool = True) -> None:
        """Continue at `step` after a repair. `plan`: how the state was restored, if the first
        forward is to be verified. `report`: report the first commit."""
        self.step = self._resumed_at = step
        self.open = self._gated = False
        self._updates = 0
        self._reported = not report
        if report:
            self._agreement.repaired(step)
        if plan is not None and (self._plan is None or plan.compared):
            # else the previous plan stays: its forward differed and is compared again
            self._plan = plan

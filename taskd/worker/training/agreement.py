"""Comparisons and agreements between ranks at the ends of some steps."""

from __future__ import annotations

import logging

from taskd.cython_api import slot
from taskd.worker.communication.counts import PASSES, passes
from taskd.worker.repair.session import RepairSession
from taskd.worker.state import replicas
from taskd.worker.state.given import UNSUPPORTED, NotProtectable, WouldDiverge
from taskd.worker.training.cursor import Cursor
from taskd.worker.training.recorder import Recorder

log = logging.getLogger("taskd.worker")

OF_OTHERS = "the state of another rank cannot be recorded"


LOADER = (
    "Keep what decides about its batches in generators, samplers and plain attributes, or give it"
    " state_dict() (docs/state.md)"
)


class Agreement:
    """What this rank's records depend on from others: the loop that they run, their state, how
    often it is recorded."""

    def __init__(self, session: RepairSession, cursor: Cursor, recorder: Recorder) -> None:
        self._session, self._cursor, self._recorder = session, cursor, recorder
        self._repaired = -1  # the step at which the last repair resumed
        # passes so far, if all ranks have begun each of them with the same batch; the last counted
        self._alike, self._counted = 0, -1
        # a rank has used gradients that its record of the last step lacks: were it interrupted in
        # that step, all would go back to the one before
        self.unsettled = False

    def repaired(self, step: int) -> None:
        """A repair has resumed at `step`."""
        self._repaired, self.unsettled = step, False

    def settle(self) -> None:
        """Wait until all ranks have committed the last step, before the records of the one before
        it are written over. A collective."""
        replicas.most(0, self._session.communicators.present)
        self.unsettled = False

    def due(self, step: int, of_pass: bool = True) -> bool:
        """Whether `compare` would do anything at the end of `step`: 0, 1, 3, 7, 15… from the start
        and from the last repair, and with `of_pass` a pass's first. Optimizer state exists after
        the first update; LocalSGD may begin at any step."""
        after = step - self._repaired if self._repaired >= 0 else step
        steps = step & (step + 1) == 0 or after & (after + 1) == 0
        return steps or (of_pass and self._cursor.index == 0)

    def compare(self, step: int) -> None:
        """At the ends of some steps, counted from the start and from the last repair, check that
        replicated state is still equal; at the end of a pass's first step, that ranks run the same
        loop. Raises what a collective raises, WouldDiverge, and what ends the protection."""
        session = self._session
        present = session.communicators.present
        if self._cursor.index == 0:
            self._compare_loops(step)
        if not self.due(step, of_pass=False):
            return
        state, why = session.state, self._recorder.refused
        try:
            if not why:
                self._recorder.refresh()
        except UNSUPPORTED as error:
            why = str(error)
        if replicas.most(len(why), present):
            raise NotProtectable(why or OF_OTHERS)
        self._agree_on_pace()
        self.unsettled = replicas.most(int(session.gradients.broken), present) > 0
        session.communicators.counts.agree(step, lambda value: replicas.most(value, present))
        found = replicas.compare(state, session.rank, session.node, present)
        if found is None or slot.interruption() > session.built_at:
            return
        if away := session.communicators.away:
            raise WouldDiverge(
                f"since step {step} at the latest, {found.says(len(state.replicated))}: what ranks"
                f" {sorted(away)}, which are away, would have of it is unknown"
            )
        # two comparisons had found them equal; before that, a difference may be intended by the
        # script
        if self._repaired > 1:
            names = [".".join(str(part) for part in key if part != "") for key, _ in state.names()]
            raise WouldDiverge(
                f"since step {step} at the latest, {found.names(names)}; they were equal before the"
                f" repair at step {self._repaired}, so something that the script carries from step"
                " to step was not restored there: see `not protected` and `not seen` in the ranks'"
                " logs (docs/state.md)"
            )
        text = "rank %d: since step %d at the latest, %s"
        log.warning(text, session.rank, step, found.says(len(state.replicated)))
        state.set_apart(found.apart, found.replicas)
        # stripes of earlier steps stay: they fit the structure in the records of these steps
        self._recorder.lay_out()

    def _compare_loops(self, step: int) -> None:
        """At the end of a pass's first step."""
        present, plan = self._session.communicators.present, self._cursor.plan
        first = str(self._recorder.batches.fingerprint(step) or "").encode()
        same, alike = replicas.equal([plan.encode(), first], present)
        if not same:
            raise WouldDiverge(f"the ranks run different loops: {replicas.who(plan, present)}")
        if not alike and self._repaired >= 0 and self._alike > 1:
            raise WouldDiverge(
                f"the pass that begins with step {step} has not the same first batch on all ranks,"
                f" as the {self._alike} passes before it had: since the repair at step"
                f" {self._repaired} a loader is somewhere else. {LOADER}"
            )
        more = int(self._cursor.pass_number != self._counted)  # else its first step is repeated
        self._alike = self._alike + more if alike and first and self._alike >= 0 else -1
        self._counted = self._cursor.pass_number

    def uneven(self, found: slot.Uneven, step: int) -> None:
        """Ranks have begun different numbers of collectives before `step`. Raises WouldDiverge,
        unless they train on."""
        session, counts = self._session, self._session.communicators.counts
        if found.group == PASSES:
            raise WouldDiverge(passes(found, session.node, step)) from None
        text = counts.says(found, session.node, step - 1)
        if counts.refuses:
            raise WouldDiverge(text) from None
        if counts.leave_out(found.group):  # else it was found where the attempt began
            log.warning("rank %d: %s", session.rank, text)

    def _agree_on_pace(self) -> None:
        """Agree on how many steps apart the whole state is recorded from now on."""
        session, pace = self._session, self._recorder.pace
        if not pace.chosen or not session.state.shards:
            return
        size = sum(row.numel() for row in session.state.shards)
        if session.stripes is not None:
            size += session.stripes.length
        before = pace.every
        pace.agree(replicas.most(pace.wanted(size), session.communicators.present))
        if pace.every != before:
            text = "rank %d: its whole state (%.1f MiB) is recorded every %d steps"
            log.info(text, session.rank, size / 2**20, pace.every)

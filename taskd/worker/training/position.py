"""Where a rank is when it is interrupted, and to which steps it can go back."""

from __future__ import annotations

import logging

from taskd.core.job.snapshots import FINAL
from taskd.cython_api import damage
from taskd.messages.values import Position, Spans
from taskd.worker.repair.damage import survey
from taskd.worker.repair.session import RepairSession
from taskd.worker.training.attempts import Attempts
from taskd.worker.training.finite import FiniteCheck
from taskd.worker.training.recorder import Recorder
from taskd.worker.training.suspicion import Suspicion

log = logging.getLogger("taskd.worker")


def of(
    session: RepairSession,
    attempts: Attempts,
    recorder: Recorder,
    suspicion: Suspicion,
    finite: FiniteCheck,
    inelastic: str,
    at_work: bool = False,
) -> tuple[Position, str]:
    """This rank's position, and why its process cannot go on ("": it can). `inelastic`: why no
    other rank could stand in for one of this job. `at_work`: no repair follows, so its device is
    left as it is."""
    step = attempts.step
    final, provisional = session.entries.steps()
    if not attempts.updated:
        recorder.compare_with_end(step)
    found = survey(
        damage.damages(),
        session.restorer.accepted,
        session.state,
        session.stripes,
        attempts.cut,
    )
    if session.stripes is not None:
        for begin, end in found.stripes:
            session.stripes.forget_lost(begin, end)  # written again when the step is repeated
    lost, unfit = (False, "") if at_work else suspicion.clean_device()
    untouched = not (attempts.updated or lost or found.state)
    clean = step if untouched and recorder.is_clean(step) else None
    doubts = finite.doubts(step)
    remembered: frozenset[int] = frozenset()
    # not recorded, but whole in this process
    if clean is not None and not doubts and (start := session.start(step)) is not None:
        remembered = frozenset({step}) - final - provisional
        final |= remembered if start[0] == FINAL else frozenset()
        provisional |= remembered - final
    # the step has used gradients that its record lacks: the step before is repeated
    if session.gradients.interrupted():
        log.warning(
            "rank %d: step %d went on with gradients of the step before", session.rank, step
        )
        clean, final, provisional = None, final - {step}, provisional - {step}
    return (
        Position(
            step,
            clean,
            final,
            provisional,
            session.stripes.steps() if session.stripes is not None else frozenset(),
            frozenset(recorder.drifted),
            doubts,
            remembered,
            session.state.replicas.of,
            inelastic=inelastic,
            members=Spans.of(session.state.replicas.members or ()),
            changed=frozenset(recorder.changed),
        ),
        found.unfit or unfit or session.communicators.spent,
    )

"""FAILED: the next rung of the ladder. CLOSED: every rank trains again. ENDED: all ranks are
restarted, or the job ends."""

from __future__ import annotations

from taskd.core import commands as c
from taskd.core.incident.phases import Move, Phase
from taskd.core.incident.rounds import Next, Work
from taskd.core.incident.state import Incident
from taskd.core.incident.takeover import Takeover
from taskd.core.incident.times import told
from taskd.core.pause import Pause
from taskd.core.state import JobState

SET_UP = (
    " A replacement runs the script's set-up again, where its first process has left directories,"
    " files, locks, ports and names: let the script ask taskd.replacement (or TASKD_INCARNATION,"
    " which is not 0 in a replacement) and leave out what is done already."
)


class Climb(Work):
    def __init__(self, job: JobState, pause: Pause, nodes: Takeover) -> None:
        self._job, self._pause, self._nodes = job, pause, nodes

    def enter(self, incident: Incident, why: str, now: float) -> Next:
        """Go to the next rung: the strategy has failed because of `why`; "" if it no longer fits
        the damage, which is already in `tried`."""
        if incident.moving is not None:
            self._nodes.put_back(incident, why)
            self._pause.end_move()
        if why:
            incident.failed.append(incident.strategy)
            incident.tried.append(f"{incident.strategy}: {why}")
            self._job.note(f"incident {incident.number}: {incident.strategy} failed: {why}")
        return Move.CLIMBED, ""


class Close(Work):
    def __init__(self, job: JobState) -> None:
        self._job = job

    def enter(self, incident: Incident, why: str, now: float) -> Next:
        close(self._job, incident, now)
        return None


class End(Work):
    def __init__(self, job: JobState) -> None:
        self._job = job

    def enter(self, incident: Incident, why: str, now: float) -> Next:
        """End the job. `why`: the dump that was saved; "" if no strategy is left."""
        passed_over: list[str] = []
        if why:
            incident.tried.append(why)
        elif incident.rung is not None:
            failed = "it has failed in this incident"
            passed_over = [s for s in incident.rung.skipped if failed not in s]
        give_up(self._job, incident, passed_over, now)
        return None


def close(job: JobState, incident: Incident, now: float) -> None:
    """Close the incident: every rank has committed the interrupted step."""
    assert incident.round.plan is not None
    step, seconds = incident.round.plan.step, now - incident.began
    phases = incident.timeline.durations(now)
    phases.pop(Phase.CLOSED.value, None)
    job.note(
        f"incident {incident.number} closed by {incident.strategy} after {seconds * 1e3:.0f}"
        f" ms; step {step} is committed on all ranks",
        told=True,
    )
    job.say(
        c.Closed(
            incident.number,
            incident.strategy,
            tuple(incident.faults),
            tuple(sorted(incident.replaced)),
            step,
            seconds,
            phases,
            (*incident.tried, f"{incident.strategy}: done"),
            incident.began,
            incident.round.reached,
            tuple(told(incident.times, incident.began)),
        )
    )


def give_up(job: JobState, incident: Incident, passed_over: list[str], now: float) -> None:
    """Restart all ranks if `fault-retry-times` allows it, otherwise end the job: no strategy is
    left. The user reads the reason as one paragraph."""
    tried = "; ".join(incident.tried) or "nothing"
    skipped = f" Passed over: {'; '.join(passed_over)}." if passed_over else ""
    reason = (
        f"incident {incident.number} could not be repaired. What failed:"
        f" {'; '.join(incident.faults[:6])}{' and more' if len(incident.faults) > 6 else ''}."
        f" When: {now - incident.began:.1f} s ago, interruption {job.interruption}, generation"
        f" {job.generation}. What was tried: {tried}.{skipped}{SET_UP if incident.set_up else ''}"
    )
    # a restart cannot work on a device that takes no process, or on a node that is gone
    possible = not job.topology.lost and not any(rank.unusable for rank in job.ranks.values())
    if possible and not incident.leaving and job.retried < job.settings.retries:
        job.retried += 1
        job.regroup = True
        job.restart = f"{reason} This is time {job.retried} of {job.settings.retries}."
        _tell(job, incident, "restarted", now)
        return
    # until another pod comes, which `recover` has waited for
    if job.settings.pods and not incident.leaving and "recover" not in incident.failed:
        _tell(job, incident, "restarted", now)
        job.exhausted = reason
        return
    _tell(job, incident, "ended", now)
    job.give_up(reason)


def _tell(job: JobState, incident: Incident, result: str, now: float) -> None:
    """Write an incident that was not repaired into the journal, as Closed does for the others."""
    phases = incident.timeline.durations(now)
    for phase in (Phase.CLOSED, Phase.ENDED):
        phases.pop(phase.value, None)
    job.tell(
        "incident",
        incident=incident.number,
        began=incident.began,
        result=result,
        strategy=incident.strategy,
        faults=list(incident.faults),
        ranks=sorted(incident.replaced),
        step=-1,
        reached=incident.round.reached,
        seconds=now - incident.began,
        phases=phases,
        tried=list(incident.tried),
        rounds=told(incident.times, incident.began),
    )

"""FAILED: the next rung of the ladder. CLOSED: every rank trains again. ENDED: all ranks are
restarted, or the job ends."""

from __future__ import annotations

from collections import Counter

from taskd.core import commands as c
from taskd.core.abbreviate import abbreviate, named
from taskd.core.incident.phases import FINAL, Move
from taskd.core.incident.rounds import Next, Work
from taskd.core.incident.state import Incident
from taskd.core.incident.takeover import Takeover
from taskd.core.incident.times import for_journal
from taskd.core.job import ladder
from taskd.core.job.pause import Pause
from taskd.core.job.state import JobState
from taskd.messages import to_agent

SET_UP = (
    " A replacement runs the script's set-up again, where its first process has left directories,"
    " files, locks, ports and names: let the script check taskd.replacement (or TASKD_INCARNATION,"
    " which is not 0 in a replacement) and skip what is already done. In a loop over range()"
    " it runs the code between finished passes without their steps, so variables that a step"
    " assigns are missing there: use job.epochs()."
)


NODE = (
    " To survive a lost node, start the job with recover among TASKD_RECOVER_STRATEGY and one more"
    " launcher, a standby (taskd run --standby), or with elastic-training, which goes on with fewer"
    " nodes."
)
NONE_SET = (
    ", as exit is the job's only strategy: for repairs, set TASKD_RECOVER_STRATEGY="
    f"{','.join(ladder.DEFAULT)} in the manager's environment (taskd run does by itself)"
)
NAMED = 6  # faults, nodes
GO_ON = "Start the same command with --resume auto, and training goes on from there."
FRAMEWORKS = "Start the same command, and the framework goes on from that checkpoint."


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
        """Close the incident: every rank has committed the interrupted step."""
        assert incident.round.plan is not None
        self._job.load = None
        step, seconds = incident.round.plan.step, now - incident.began
        self._job.note(
            f"incident {incident.number} closed by {incident.strategy} after {seconds * 1e3:.0f}"
            f" ms; step {step} is committed on all ranks{_replaced(incident)}",
            journaled=True,
        )
        self._job.say(
            c.Closed(
                incident.number,
                incident.strategy,
                tuple(incident.faults),
                tuple(sorted(incident.replaced)),
                step,
                seconds,
                _durations(incident, now),
                (*incident.tried, f"{incident.strategy}: done"),
                incident.began,
                incident.round.reached,
                tuple(for_journal(incident.times, incident.began)),
            )
        )
        return None


class End(Work):
    def __init__(self, job: JobState) -> None:
        self._job = job

    def enter(self, incident: Incident, why: str, now: float) -> Next:
        """Restart all ranks if `fault-retry-times` allows it, otherwise end the job. `why`: the
        dump that was saved; "" if no strategy is left."""
        passed_over: list[str] = []
        if why:
            incident.tried.append(why)
        elif incident.rung is not None:
            failed = "it has failed in this incident"
            passed_over = [s for s in incident.rung.skipped if failed not in s]
        job, reason = self._job, self._reason(incident, passed_over, now)
        # a restart cannot work on a device that takes no process, or on a node that is gone
        lost = any(node.lost for node in job.topology.nodes.values())  # also one that has left
        possible = not lost and not any(rank.unusable for rank in job.ranks.values())
        # and it begins from the newest checkpoint
        earlier = job.load is not None and job.load.step >= 0
        possible = possible and not earlier
        if possible and not incident.leaving and job.retried < job.settings.retries:
            job.retried += 1
            incident.uncount(job)
            job.restart_all(f"{reason} This is time {job.retried} of {job.settings.retries}.")
            over(job, incident, "restarted", now)
        # until another pod comes, which `recover` has waited for
        elif (
            job.settings.pods
            and not incident.leaving
            and not earlier
            and "recover" not in incident.failed
        ):
            incident.uncount(job)
            over(job, incident, "restarted", now)
            job.exhausted = reason
        else:
            over(job, incident, "ended", now)
            job.give_up(*self._ending(incident, reason))
        return None

    def _ending(self, incident: Incident, reason: str) -> tuple[str, to_agent.Ending]:
        """What the user reads, and how the job ends."""
        if incident.useless:
            return reason, "useless"
        if not incident.saved:
            return reason, "failed"
        if incident.leaving:
            done = incident.tried[-1].removeprefix("dump: done, ")
            reason = f"{'; '.join(incident.faults)}. {done[:1].upper()}{done[1:]}."
        return f"{reason} {FRAMEWORKS if self._job.handlers else GO_ON}", "saved"

    def _reason(self, incident: Incident, passed_over: list[str], now: float) -> str:
        """The explanation for the user, as one paragraph."""
        job = self._job
        if job.complete and self._reached(incident) <= job.released:
            return (
                f"{_counted(incident.faults)}. Training was complete: all ranks had committed step"
                f" {job.released - 1} and left their loops. What a script does after its loop"
                " cannot be repaired once a rank has ended."
            )
        tried = "; ".join(incident.tried) or "nothing"
        if not incident.tried and job.settings.ladder == ("exit",):
            tried += NONE_SET
        skipped = f" Passed over: {'; '.join(passed_over)}." if passed_over else ""
        return (
            f"{_counted(incident.faults)}. Incident {incident.number}{self._where(incident)} could"
            f" not be repaired. What was tried: {tried}.{skipped} It began"
            f" {now - incident.began:.1f} s ago, interruption {job.interruption}, generation"
            f" {job.generation}."
            f"{SET_UP if incident.set_up else ''}"
            f"{NODE if job.topology.lost and not self._survives_nodes else ''}"
            f"{f' {job.load.remedy}' if job.load is not None else ''}"
        )

    def _reached(self, incident: Incident) -> int:
        """The highest step that a rank is known to be at."""
        known = [*incident.round.reports.values(), *(r.left for r in self._job.ranks.values())]
        return max((p.step for p in known if p is not None), default=-1)

    @property
    def _survives_nodes(self) -> bool:
        settings = self._job.settings
        return settings.survives_nodes or settings.pods or ladder.ELASTIC in settings.ladder

    def _where(self, incident: Incident) -> str:
        """The nodes in which the faults were, with their addresses; a job of one node has none to
        choose from."""
        topology = self._job.topology
        nodes = topology.nodes
        replaced = {n for r in incident.replaced if (n := topology.node_of(r)) is not None}
        found = sorted({*incident.counted, *replaced, *topology.lost})
        if len(nodes) < 2 or not found:
            return ""
        named = [f"node {n} ({nodes[n].records[0] or 'its address is not known'})" for n in found]
        return f", on {abbreviate(named, few=NAMED)},"


def over(job: JobState, incident: Incident, result: str, now: float, why: str = "") -> None:
    """Write it into the journal, as Closed does for one that was repaired."""
    if why:
        job.note(f"incident {incident.number} is over: {why}", journaled=True)
    job.journal(
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
        phases=_durations(incident, now),
        tried=[*incident.tried, *([why] if why else [])],
        rounds=for_journal(incident.times, incident.began),
    )


def _replaced(incident: Incident) -> str:
    ranks = sorted(incident.replaced)
    return f"; replaced: {named('rank', ranks)}" if ranks else ""


def _counted(faults: list[str]) -> str:
    """Each fault once, the first ones by name."""
    times = Counter(faults)
    told = [f"{text}{f' ({times[text]} times)' if times[text] > 1 else ''}" for text in times]
    return abbreviate(told, "; ", NAMED)


def _durations(incident: Incident, now: float) -> dict[str, float]:
    """Seconds in each phase, without those that it ends in."""
    over = {phase.value for phase in FINAL}
    return {p: s for p, s in incident.timeline.durations(now).items() if p not in over}

"""REBUILD: the communicators of a new generation. RESTORE: every rank's state at the start of the
step. RESUME: until all have committed it."""

from __future__ import annotations

from collections.abc import Collection

from taskd.core.abbreviate import abbreviate
from taskd.core.incident.elastic import Elastic
from taskd.core.incident.phases import Move
from taskd.core.incident.rounds import Next, Rounds, Work, with_handlers
from taskd.core.incident.state import Incident
from taskd.core.incident.takeover import Takeover
from taskd.core.job import replica_sets
from taskd.core.job.pause import Pause
from taskd.core.job.state import JobState
from taskd.messages import to_rank
from taskd.messages.values import Plan


class OfAll(Work):
    """Lasts until all ranks have reported."""

    def __init__(self, job: JobState) -> None:
        self._job = job

    def reported(self, incident: Incident) -> Collection[int]:
        """The ranks that have."""
        raise NotImplementedError

    def all_reported(self, incident: Incident) -> bool:
        return len(self.reported(incident)) == len(self._job.ranks)

    def silent(self, incident: Incident) -> list[int]:
        return sorted(set(self._job.ranks) - set(self.reported(incident)))


class Rebuild(OfAll):
    @property
    def limit(self) -> float:
        return with_handlers(self._job, self._job.settings.rebuild)

    def enter(self, incident: Incident, why: str, now: float) -> Next:
        self._job.generation += 1
        grows = incident.moving is not None and incident.moving.grows
        new = tuple(sorted(incident.new))
        self._job.rebuild(new, stand_ins=incident.round.stand_ins, grows=grows)
        return None

    def reported(self, incident: Incident) -> Collection[int]:
        return incident.round.rebuilt

    def finished(self, incident: Incident) -> Next:
        return (Move.REBUILT, "") if self.all_reported(incident) else None


class Restore(OfAll):
    def __init__(self, job: JobState, rounds: Rounds) -> None:
        super().__init__(job)
        self._rounds = rounds

    @property
    def limit(self) -> float:
        return with_handlers(self._job, self._job.settings.restore)

    def enter(self, incident: Incident, why: str, now: float) -> Next:
        assert incident.round.plan is not None
        self._job.say(
            to_rank.Restore(self._job.interruption, self._job.generation, incident.round.plan)
        )
        return None

    def reported(self, incident: Incident) -> Collection[int]:
        return incident.round.restored

    def finished(self, incident: Incident) -> Next:
        """Let ranks resume only if all replicas are equal."""
        restored, plan = incident.round.restored, incident.round.plan
        if not self.all_reported(incident):
            return None
        assert plan is not None
        # a framework's handlers report the checkpoint that they have loaded, the same for all
        by_set = not self._job.handlers
        sets = {m.rank: m.replica_set if by_set else 0 for m in incident.round.members}
        if replica_sets.equal(restored, sets):
            return self._loaded(incident, plan)
        detail = abbreviate(f"rank {r}: {d}" for r, d in sorted(restored.items()))
        why = f"replicas differ at step {plan.step} ({detail})"
        outliers = replica_sets.outliers(restored, sets)
        if incident.moving is None and outliers is not None:
            incident.divergent = outliers
            if not incident.restore_retried and not incident.divergent & set(plan.keep):
                # their source may have been corrupt; this time they get another
                incident.restore_retried = True
                self._job.note(incident.add(why))
                return self._rounds.another(incident)
            differs = "its restored state differs from most others'"
            incident.evicted.update(dict.fromkeys(incident.divergent, differs))
        return Move.DIFFERENT, why

    def _loaded(self, incident: Incident, plan: Plan) -> Next:
        """All ranks have the state of the same step: if that is a checkpoint's, it must be the one
        that was asked for."""
        if plan.load is None:
            return Move.RESTORED, ""
        step = incident.round.loaded
        if plan.load.step not in (-1, step):
            return Move.SPENT, f"the framework loaded the checkpoint of step {step} instead"
        if step < self._job.released:
            ended = f"all ranks' loops have ended before step {self._job.released}"
            return Move.SPENT, f"{ended}, and the checkpoint is of step {step}"
        self._job.note(f"all ranks have loaded the checkpoint of step {step}")
        incident.round.plan = plan.at(step)
        return Move.RESTORED, ""


class Resume(OfAll):
    def __init__(self, job: JobState, pause: Pause, nodes: Takeover, elastic: Elastic) -> None:
        super().__init__(job)
        self._pause, self._nodes, self._elastic = pause, nodes, elastic

    @property
    def limit(self) -> float:
        return max(self._job.settings.resume, self._job.settings.form)

    def enter(self, incident: Incident, why: str, now: float) -> Next:
        job = self._job
        assert incident.round.plan is not None
        if incident.moving is not None:
            self._nodes.moved(incident)
            self._pause.end_move()  # before the ranks resume, or they would stop at once
        # from here on the replacements have state like all other ranks
        incident.new.clear()
        incident.ready.clear()
        for rank in job.ranks.values():
            rank.left, rank.finished = None, None
        job.say(to_rank.Resume(job.interruption, job.generation, incident.round.plan.step))
        self._elastic.resumed(incident)
        if incident.stood_still > 1:  # before they begin the step: then they hold its state
            incident.narrow(("dump", "exit"))
            return Move.SPENT, "no rank made progress in new processes either"
        return None

    def reported(self, incident: Incident) -> Collection[int]:
        return incident.round.committed

    def finished(self, incident: Incident) -> Next:
        return (Move.COMMITTED, "") if self.all_reported(incident) else None

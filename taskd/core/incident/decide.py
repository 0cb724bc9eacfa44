"""DECIDE: at which step to resume, and whose state to use. DUMP: the state is saved instead."""

from __future__ import annotations

from taskd.core.abbreviate import abbreviate
from taskd.core.incident import checkpoint, dump, optimizer_replicas, repair
from taskd.core.incident.phases import Move
from taskd.core.incident.rounds import Next, Work
from taskd.core.incident.state import Incident
from taskd.core.job.state import JobState
from taskd.messages import from_agent, from_rank
from taskd.messages.values import Position


class Decide(Work):
    def __init__(self, job: JobState) -> None:
        self._job = job
        self.resumed: int | None = None  # step of the last repair's plan

    def enter(self, incident: Incident, why: str, now: float) -> Next:
        members = [self._member(incident, number) for number in self._job.ranks]
        members += [self._away(number, left) for number, left in incident.round.taken.items()]
        job = self._job
        steps = (m.position.step for m in members if m.position is not None)
        incident.round.reached = max(steps, default=-1)
        untrained = all(m.position is None or not m.position.step for m in members)
        if job.handlers and untrained and job.load is None:
            incident.uncount(job)
            job.restart_all(f"{incident.faults[-1]}; {optimizer_replicas.NO_STEP}")
            return None
        if incident.strategy == "dump":
            able = set(incident.round.reports) - set(incident.evicted)
            begin = checkpoint.begin if job.handlers else dump.begin
            begun = begin(job, members, able)
            if isinstance(begun, repair.Refusal):
                return Move.REFUSED, begun.reason
            incident.round.dump = begun
            return Move.SAVING, ""
        plan = (
            optimizer_replicas.plan(members, job.optimizers, job.load, job.loads)
            if job.handlers
            else repair.plan(members, self.resumed, incident.witnesses)
        )
        if isinstance(plan, repair.Refusal):
            return Move.REFUSED, plan.reason
        # the rank may have been replaced since
        incident.doubted = plan.doubted if plan.doubted is not None else incident.doubted
        incident.round.plan = plan.doubting(incident.doubted)
        self.resumed = plan.step
        job.ask(plan.load)  # from then on memory may be a checkpoint's, or partly
        incident.round.members = members
        self._job.note(f"repair: {plan.reason}")
        return Move.PLANNED, ""

    def _away(self, number: int, left: Position | None) -> repair.Member:
        """A rank that leaves: its record, and its stripes if its node stays. One that left before
        has no part in its node's copy: node -1."""
        if number in self._job.stand_ins:
            return repair.Member(number, -1, False, left, away=True)
        node, rank = self._job.topology.node_of(number), self._job.away[number]
        stays = node is not None and self._job.topology.nodes[node].living
        if left is not None and stays and rank.left is not None:
            left = left.but(stripes=rank.left.stripes)
        return repair.Member(number, -1 if node is None else node, False, left, away=True)

    def _member(self, incident: Incident, number: int) -> repair.Member:
        rank, node = self._job.ranks[number], self._job.topology.node_of(number)
        new = number in incident.new or not rank.alive
        position = rank.left if new else incident.round.reports.get(number)
        if position is not None and number in incident.divergent:
            position = position.but(clean=None, stripes=frozenset())
        return repair.Member(number, -1 if node is None else node, not new, position)


class Save(Work):
    def __init__(self, job: JobState) -> None:
        self._job = job

    @property
    def limit(self) -> float:
        return self._job.settings.dump

    def took(
        self,
        incident: Incident,
        event: from_rank.StateSaved | from_agent.RecordsSaved | from_agent.Sealed,
    ) -> Next:
        saving = incident.round.dump
        if saving is None:
            return None
        if isinstance(event, from_agent.Sealed):
            if not isinstance(saving, dump.Dump):  # a framework's checkpoint is never sealed
                return None
            if event.why:
                return Move.SPENT, f"the dump could not be sealed: {event.why}"
            done = f"the state at the start of step {saving.step} is at {event.path}"
            lacking = set(range(self._job.topology.world_size)) - saving.recorded
            if lacking:
                done += (
                    f", but without the records of ranks [{abbreviate(sorted(lacking))}], which"
                    " were lost with all that kept them: no job can begin from it. Its state/"
                    " can be read with torch.distributed.checkpoint"
                )
            return self._done(incident, "" if lacking else event.path, done)
        if isinstance(event, from_rank.StateSaved):
            saving.saved_by(event.rank)
        elif event.why:
            why = f"node {event.node} could not save its ranks' records: {event.why}"
            return Move.SPENT, why
        elif isinstance(saving, dump.Dump):
            saving.waiting.discard(event.node)
            saving.recorded.update(event.ranks)
        saving.files += event.files
        saving.advance(self._job)
        return self._done(incident, saving.done, saving.done) if saving.done else None

    def _done(self, incident: Incident, saved: str, text: str) -> Next:
        incident.saved = saved
        return Move.SAVED, f"dump: done, {text}"

    def silent(self, incident: Incident) -> list[int]:
        saving = incident.round.dump
        return saving.silent if saving is not None else []

    def late(self, incident: Incident) -> Next:
        return Move.DEADLINE, f"the state was not saved within {self.limit:.0f} s"

"""RESCHEDULE: standbys take over the lost nodes, or other ranks the records of those that were on
them. REPLACE: replacements run their scripts up to the
first attempt."""

from __future__ import annotations

from collections.abc import Iterator

from taskd.core.abbreviate import abbreviate
from taskd.core.incident.elastic import Elastic
from taskd.core.incident.phases import Move
from taskd.core.incident.rounds import Next, Rounds, Work
from taskd.core.incident.state import Incident
from taskd.core.job import ladder
from taskd.core.job.state import JobState


class Reschedule(Work):
    def __init__(self, job: JobState, elastic: Elastic) -> None:
        self._job, self._elastic = job, elastic

    def enter(self, incident: Incident, why: str, now: float) -> Next:
        leaves = incident.strategy == ladder.ELASTIC
        following = self._elastic.leave(incident) if leaves else None
        self.wait(incident, now)  # no standby is waited for in place of a node that leaves
        return following

    def wait(self, incident: Incident, now: float) -> None:
        """Set the deadline."""
        settings, topology = self._job.settings, self._job.topology
        if incident.missing is None:
            incident.missing = now
        soonest = now + settings.take_over
        waits = any(not topology.nodes[n].assignee for n in topology.lost)
        incident.deadline = (
            max(incident.missing + settings.reschedule, soonest) if waits else soonest
        )

    def finished(self, incident: Incident) -> Next:
        if untaken := incident.round.untaken:
            return Move.SPENT, untaken
        if self._job.topology.lost or incident.round.taking:
            return None
        incident.missing = None
        return Move.TAKEN, ""

    def silent(self, incident: Incident) -> list[int]:
        return sorted(self._job.topology.absent() & self._job.ranks.keys())

    def late(self, incident: Incident) -> Next:
        topology, settings = self._job.topology, self._job.settings
        if taking := incident.round.taking:
            why = f"the agents of nodes [{abbreviate(sorted(taking))}] have not taken the records"
            return Move.DEADLINE, f"{why} of ranks that left within {settings.take_over:.0f} s"
        if incident.moving is not None:
            leg = next(leg for leg in incident.moving.legs if topology.nodes[leg.node].lost)
            why = f"standby {leg.assignee[:8]} has not taken node {leg.node} over"
            return Move.DEADLINE, f"{why} within {settings.take_over:.0f} s"
        waiting = [n for n in topology.lost if not topology.nodes[n].assignee]
        if not waiting:
            return None
        reachable, everybody = self._job.reachable()
        why = (
            "no standby came for"
            if not topology.standbys
            else f"only {reachable} of {everybody} agents are reachable, no majority, for"
        )
        why = f"{why} node {waiting[0]} within {settings.reschedule:.0f} s"
        return Move.DEADLINE, why

    def overdue(self) -> Iterator[tuple[int, str]]:
        """Standbys had time enough to take nodes over: the nodes that others are to take, and
        why."""
        topology, limit = self._job.topology, f"{self._job.settings.take_over:.0f} s"
        for number in topology.lost:
            assignee = topology.nodes[number].assignee
            self._job.fence(assignee, number, f"it has not taken node {number} over within {limit}")
            yield number, f"standby {assignee[:8]} has not taken it over within {limit}"


class Replace(Work):
    def __init__(self, job: JobState, rounds: Rounds) -> None:
        self._job, self._rounds = job, rounds

    @property
    def limit(self) -> float:
        settings = self._job.settings
        return max(settings.form, settings.handler if self._job.handlers else 0.0)

    def enter(self, incident: Incident, why: str, now: float) -> Next:
        self.wait(incident, now)
        return None

    def wait(self, incident: Incident, now: float) -> None:
        """Set the deadline. There is one for all resets, however many rounds there are."""
        incident.deadline = now + self.limit
        if self._rounds.waiting():
            if incident.resets is None:
                incident.resets = now
            incident.deadline = incident.resets + self._job.settings.reset

    def finished(self, incident: Incident) -> Next:
        ready = incident.new <= incident.ready and not self._rounds.waiting()
        return (Move.READY, "") if ready else None

    def silent(self, incident: Incident) -> list[int]:
        return sorted(incident.new - incident.ready)

    def late(self, incident: Incident) -> Next:
        settings = self._job.settings
        if waiting := self._rounds.waiting():
            rank = min(waiting)
            why = f"the device of rank {rank} was not reset within {settings.reset:.0f} s"
            return Move.DEADLINE, f"{why} ({waiting[rank]})"
        why = f"the replacement of ranks [{abbreviate(self.silent(incident))}] was not ready"
        return Move.DEADLINE, f"{why} within {settings.form:.0f} s"

"""Agents that leave by the manager's own order leave one after the other.

A roster without an agent counts once a majority of its members have it. Where two of three agents
are fenced at the same moment, the second is gone before it has the roster without the first: no
majority is left, and no standby can take a node over. So an agent whose node is given up gets the
order once the change before it is settled, and before a standby may take a node over.
"""

from __future__ import annotations

from taskd.core.job.state import JobState, Part

PATIENCE = 2.0  # seconds: a change takes two round trips, or cannot be made


class Fencing(Part):
    def __init__(self, job: JobState) -> None:
        self._job = job
        self._due: float | None = None

    @property
    def deadline(self) -> float | None:
        return self._due

    def follow_up(self, now: float) -> None:
        job = self._job
        if not job.fences:
            self._due = None
            return
        if self._due is None:
            self._due = now + PATIENCE
        if job.over or now >= self._due or job.election.candidate.settled:
            job.tell_fenced()
            self._due = None

"""Reports of a framework that repairs itself through handlers (taskd/adaptor/mindio)."""

from __future__ import annotations

from taskd.core.incident.machine import Recovery
from taskd.core.job.state import JobState, Part
from taskd.messages import from_rank

LAST = {"dump": ("dump", "exit"), "exit": ("exit",)}  # what a program may request


class Framework(Part):
    def __init__(self, job: JobState, recovery: Recovery) -> None:
        self._job, self._recovery = job, recovery

    def replicas(self, event: from_rank.OptimizerReplicas, now: float) -> None:
        job, rank = self._job, event.rank
        known = job.ranks.keys() | job.away.keys()
        for kind, group in enumerate(event.groups):
            ranks = group.ranks
            if (
                not ranks
                or len(set(ranks)) != len(ranks)
                or not set(ranks) <= known
                or len(ranks) % group.count
            ):
                job.note(
                    f"rank {rank} reports an impossible replica group for optimizer {kind}:"
                    f" {group.count} replicas on ranks {list(ranks)}, in a job of"
                    f" {len(known)} ranks; ignored"
                )
                return
        job.ranks[rank].groups, job.ranks[rank].loads = event.groups, event.loads

    def requested(self, event: from_rank.StrategyRequested, now: float) -> None:
        """A rank's process ends the job."""
        job = self._job
        text = f"rank {event.rank}: its program requests {event.strategy}"
        if event.strategy not in LAST or not job.protected or not job.handlers:
            job.note(f"{text}: ignored; {' and '.join(LAST)} may be requested of a protected job")
        else:
            self._recovery.leave(text, LAST[event.strategy], now)

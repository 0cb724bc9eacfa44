"""Handles the end of a pass: ranks finish their loops, wait for the others, and exit."""

from __future__ import annotations

from taskd.core.abbreviate import abbreviate
from taskd.core.incident.end import over
from taskd.core.incident.faults import Faults
from taskd.core.incident.machine import Recovery
from taskd.core.incident.phases import Phase
from taskd.core.incident.state import Incident
from taskd.core.job.pause import Pause
from taskd.core.job.state import JobState
from taskd.messages import from_agent, from_rank, to_rank


class Finishing:
    def __init__(self, job: JobState, recovery: Recovery, faults: Faults, pause: Pause) -> None:
        self._job, self._recovery, self._faults, self._pause = job, recovery, faults, pause

    def check(self, now: float) -> None:
        """Check, once a rank waits for the others, whether any of these has already exited."""
        if self._recovery.incident is not None:
            return
        self._pause.check()
        if self._pause.all_paused:  # ranks at the end of their loop are paused there
            return
        missed = self._job.quit_before_the_end()
        if missed:
            waiting = "the others have finished their loops and wait for"
            self._recovery.fault(f"{waiting} ranks [{abbreviate(missed)}]", now)
        else:
            self._job.release_if_finished()

    def finished(self, event: from_rank.RankFinished, now: float) -> None:
        """The rank's loop has ended; it can still be rolled back."""
        job = self._job
        if event.step <= job.released:  # a replacement at the end of a pass that the others left
            job.say(to_rank.Release(job.released))
            return
        job.ranks[event.rank].finished = event.step
        self._recovery.committed(event.rank, now)
        self.check(now)

    def ended(self, event: from_agent.RankEnded, now: float) -> None:
        """The rank's process has exited with status 0."""
        rank = self._job.ranks[event.rank]
        if rank.ended or not rank.alive:
            return  # repeated, by an agent that has reconnected
        if self._job.protected and event.step > self._job.released:
            self._quit(event, now)
            return
        rank.ended = True
        if self._recovery.phase is Phase.RESUME:
            self._recovery.committed(event.rank, now)
        elif (incident := self._recovery.incident) is not None:
            why = f"rank {event.rank} has ended"
            if self._moot(incident):
                why += ", as the others will: training was complete when the fault was reported"
                over(self._job, incident, "repaired", now, why)
                self._recovery.drop(why)
            else:
                self._recovery.spent(f"{why} and can no longer take part in a repair", now)
        self.check(now)

    def _moot(self, incident: Incident) -> bool:
        """Whether no process is missing or about to be, and none waits: all are past their
        loops."""
        job = self._job
        asked = incident.phase is Phase.INTERRUPT and not incident.round.reports
        gone = incident.new or incident.killed or incident.evicted or job.topology.lost
        alive = all(rank.alive for rank in job.ranks.values())
        return job.complete and asked and alive and not gone and incident.moving is None

    def _quit(self, event: from_agent.RankEnded, now: float) -> None:
        """The rank has exited in the middle of its loop. If all ranks do, the job is done;
        otherwise the others still need it, and it counts as dead."""
        job, incident = self._job, self._recovery.incident
        rank = job.ranks[event.rank]
        how = f"exited with status 0 before step {event.step}, in the middle of its loop"
        rank.left = event.position or rank.left
        rank.left_loop, rank.quit_at = event.left_loop, event.step
        resumed = self._recovery.phase is Phase.RESUME
        if incident is not None and not (resumed and event.rank in incident.round.committed):
            if incident.broken and self._faults.apart(incident.reporters, incident.faults[-1]):
                return
            rank.alive = False
            self._faults.died(event.rank, how, now)
            return
        rank.ended, rank.quit = True, how
        if all(state.ended for state in job.ranks.values()):
            job.note("all ranks have left their loops together")
            job.released = max(job.released, event.step)
            job.say(to_rank.Release(job.released))  # the launchers may leave
        self.check(now)

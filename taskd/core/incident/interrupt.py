"""INTERRUPT: every rank leaves its step, and what cannot be kept is killed. CONSULT: somebody else
names the strategy."""

from __future__ import annotations

from math import inf

from taskd.core.abbreviate import abbreviate
from taskd.core.incident.phases import Move
from taskd.core.incident.rounds import Next, Rounds, Work, with_handlers
from taskd.core.incident.state import Incident, Round
from taskd.core.incident.takeover import Takeover
from taskd.core.incident.times import RankTimes
from taskd.core.job import ladder
from taskd.core.job.state import JobState
from taskd.core.pending import PendingSet
from taskd.messages import to_agent, to_rank


class Interrupt(Work):
    def __init__(self, job: JobState, nodes: Takeover, rounds: Rounds) -> None:
        self._job, self._nodes, self._rounds = job, nodes, rounds
        self._running = PendingSet()  # ranks that have not stopped yet

    @property
    def limit(self) -> float:
        return with_handlers(self._job, self._job.settings.interruption)

    def enter(self, incident: Incident, why: str, now: float) -> Next:
        """Interrupt every rank, kill the evicted ones, replace those without a process."""
        job, rung = self._job, incident.rung
        assert rung is not None
        if rung.strategy != incident.strategy:
            passed = f" (passed over: {'; '.join(rung.skipped)})" if rung.skipped else ""
            job.note(f"strategy {rung.strategy}: {rung.reason}{passed}", journaled=True)
            job.journal(
                "decision",
                incident=incident.number,
                strategy=rung.strategy,
                reason=rung.reason,
                passed_over=list(rung.skipped),
            )
            incident.strategy, incident.first = rung.strategy, incident.rounds
            incident.unloaded = 0
        incident.rounds += 1
        times = RankTimes(incident.rounds, incident.strategy, job.topology.world_size, now)
        incident.round = Round(times=times)
        incident.times.append(times)
        job.interruption += 1
        if rung.strategy == "recover":
            going, staying = self._nodes.broken(incident)
            for node in staying:
                self._nodes.stay(node)
            for node in going:
                self._nodes.give_up(node, incident.faults[-1])
                incident.forget(job.topology.nodes[node].ranks)
        faulty = self._rounds.faulty(incident) if job.handlers else ()
        why = incident.faults[-1]
        job.say(to_rank.Interrupt(job.interruption, why, rung.strategy, faulty, job.load))
        if rung.strategy in ladder.MOVES:
            self._nodes.move(incident)
        if rung.strategy in ladder.KEEPING:
            incident.forget(tuple(r for r, s in job.ranks.items() if not s.alive))
            incident.killed.clear()
            self._kill(incident, now)
        else:
            self._rounds.replace(incident)
            self._nodes.assign(incident)
            self._kill(incident, now)
        incident.deadline = max(
            [incident.deadline, *(then + job.settings.kill for then in incident.killed.values())]
        )
        return None

    def ask_again(self, incident: Incident, silent: list[int]) -> None:
        """Interrupt every rank once more: `silent` have not stopped in time."""
        incident.round.asked_again = True
        running = abbreviate(r for r in silent if r not in incident.killed)
        self._job.note(f"ranks [{running}] have not stopped; asked again")
        self._job.say(to_rank.Interrupt(self._job.interruption, "asked again", incident.strategy))

    def _kill(self, incident: Incident, now: float) -> None:
        for number, why in sorted(incident.evicted.items()):
            if number not in incident.killed:
                incident.killed[number] = now
                incarnation = self._job.ranks[number].incarnation
                self._job.say(to_agent.Kill(number, incarnation, why, number in incident.hung))

    def finished(self, incident: Incident) -> Next:
        if incident.killed or self._any_running(incident):
            return None
        if incident.progress > -inf:  # else no rank was interrupted in a step
            incident.stood(incident.progress)
        suspects, incident.suspects, incident.blamed = incident.suspects, {}, None
        if suspects:
            # hung replacements are not found by an interruption: they have nothing to report to it
            silent = incident.new - incident.rebuild_reported
            mute = dict.fromkeys(silent, "it has been silent since it was ready")
            return self._rounds.evict(incident, {**mute, **suspects})
        reporters, incident.reporters = incident.reporters, {}
        if incident.broken and not incident.leaving:
            # no rank is at fault: it is a fault where it was reported
            self._rounds.count(incident, reporters)
            if incident.leaving:
                return self._rounds.another(incident)
        if incident.consults and incident.strategy != "dump" and incident.moving is None:
            return Move.ASKED, ""
        return stopped(self._job, incident)

    def due(self, incident: Incident) -> float:
        """When the time is up, or ranks are to be asked again to stop."""
        if not incident.round.asked_again and self._any_running(incident):
            entered = incident.timeline.entered[-1][1]
            return min(incident.deadline, entered + self._job.settings.interrupt_again)
        return incident.deadline

    def _any_running(self, incident: Incident) -> bool:
        """Whether INTERRUPT waits for the report of any rank."""
        return self._running.any(self._job.ranks, lambda r: self.running(incident, r))

    def running(self, incident: Incident, number: int) -> bool:
        """Whether INTERRUPT waits for this rank's report; deaths of killed ranks are awaited too,
        but not here."""
        if (
            number not in self._job.ranks
            or number in incident.round.reports
            or number in incident.killed
            or number in incident.new
            or self._job.topology.is_lost(number)
        ):
            return False
        rank = self._job.ranks[number]
        # some have no process, or one that cannot report
        if incident.strategy in ladder.KEEPING:
            return rank.alive and number not in incident.evicted
        return rank.alive or not rank.resetting  # it has no process before its device is reset

    def silent(self, incident: Incident) -> list[int]:
        return [r for r in self._job.ranks if self.running(incident, r) or r in incident.killed]

    def late(self, incident: Incident) -> Next:
        undead = [r for r in self.silent(incident) if r in incident.killed]
        if undead and incident.strategy in ladder.KEEPING:  # their records are not needed
            incident.killed.clear()
            return None if self._any_running(incident) else stopped(self._job, incident)
        if undead:
            why = f"ranks [{abbreviate(undead)}] were still alive"
            return Move.SPENT, f"{why} {self._job.settings.kill:.0f} s after SIGKILL"
        return None


class Consult(Work):
    def __init__(self, job: JobState) -> None:
        self._job = job

    def enter(self, incident: Incident, why: str, now: float) -> Next:
        # one time limit for each step of the advisor, however many rounds the incident has
        if incident.consulted is None:
            incident.consulted = now
        incident.deadline = incident.consulted + self._job.settings.advice
        return None

    def finished(self, incident: Incident) -> Next:
        return None if incident.consults else stopped(self._job, incident)


def stopped(job: JobState, incident: Incident) -> Next:
    """What follows once every rank has left its step, and the strategy is certain."""
    missing = incident.strategy == ladder.ELASTIC or (
        job.topology.lost and incident.strategy != "dump"
    )
    return (Move.MISSED if missing else Move.INTERRUPTED), ""

"""Drives the incident under way: events in, moves out; `_drive` is the only loop that makes moves.

A fault opens an incident or joins the current one. The work of each phase (interrupt.py,
replace.py, decide.py, resume.py, end.py) says which move is next, and `phases.py` has the phase
that it leads to, until the incident has to wait for a rank, an agent or a deadline.
`core/incident/faults.py` decides what a fault means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import inf

from taskd.core import events as e
from taskd.core.incident import times
from taskd.core.incident.decide import Decide, Save
from taskd.core.incident.elastic import Elastic
from taskd.core.incident.end import Climb, Close, End
from taskd.core.incident.interrupt import Consult, Interrupt
from taskd.core.incident.phases import TABLE, Move, Phase, after
from taskd.core.incident.replace import Replace, Reschedule
from taskd.core.incident.resume import Rebuild, Restore, Resume
from taskd.core.incident.rounds import NOBODY, Next, Rounds, Work, listed
from taskd.core.incident.state import Incident, Moving
from taskd.core.incident.takeover import Takeover
from taskd.core.job import ladder
from taskd.core.job.pause import Pause
from taskd.core.job.state import JobState, Part
from taskd.messages import from_agent, from_rank

EARLY = (Phase.INTERRUPT, Phase.CONSULT, Phase.RESCHEDULE, Phase.REPLACE)


class Recovery(Part):
    """Handles the incident of a job, if any. Methods that take a rank's report are called only for
    current incarnations in a protected job. `unadvised`: see Advisor."""

    def __init__(self, job: JobState, pause: Pause, unadvised: Callable[[float], None]) -> None:
        self._job, self._unadvised = job, unadvised
        self.nodes = Takeover(job)
        self.rounds = Rounds(job, self.nodes)
        self._interrupt = Interrupt(job, self.nodes, self.rounds)
        self.elastic = Elastic(job, self.nodes)
        self._reschedule, self._replace = Reschedule(job, self.elastic), Replace(job, self.rounds)
        self._decide, self._save = Decide(job), Save(job)
        self._works: dict[Phase, Work] = {
            Phase.DETECT: Work(),
            Phase.INTERRUPT: self._interrupt,
            Phase.CONSULT: Consult(job),
            Phase.RESCHEDULE: self._reschedule,
            Phase.DECIDE: self._decide,
            Phase.REPLACE: self._replace,
            Phase.REBUILD: Rebuild(job),
            Phase.RESTORE: Restore(job, self.rounds),
            Phase.RESUME: Resume(job, pause, self.nodes, self.elastic),
            Phase.DUMP: self._save,
            Phase.FAILED: Climb(job, pause, self.nodes),
            Phase.CLOSED: Close(job),
            Phase.ENDED: End(job),
        }
        self.incident: Incident | None = None
        self.incidents = 0

    @property
    def phase(self) -> Phase | None:
        return self.incident.phase if self.incident is not None else None

    def drop(self, why: str) -> None:
        """Forget the incident: the processes under repair are gone."""
        if self.incident is not None and self.incident.moving is not None:
            self.nodes.put_back(self.incident, "all ranks are restarted")
        self.incident, self._decide.resumed = None, None

    # -- the loop ----------------------------------------------------------------------------------

    def _drive(self, following: Next, now: float) -> None:
        """Make the next move, and all those that follow from it."""
        incident = self.incident
        assert incident is not None
        while following is not None:
            move, why = self._with_a_strategy(incident, *following)
            incident.enter(after(incident.phase, move), now)
            incident.tell_phase(self._job)
            work = self._works[incident.phase]
            incident.deadline = now + work.limit
            following = work.enter(incident, why, now) or work.finished(incident)
        if incident.phase is Phase.CLOSED:
            self.incident = None

    def _with_a_strategy(self, incident: Incident, move: Move, why: str) -> tuple[Move, str]:
        """Choose a strategy if the move starts a round; if none fits, end the incident instead."""
        if TABLE[incident.phase].get(move) is not Phase.INTERRUPT:
            return move, why
        incident.rung = self.rounds.choose(incident)
        if incident.rung.strategy != "exit":
            return move, why
        if incident.phase is Phase.FAILED:
            return Move.STOPPED, ""
        if incident.rounds:
            incident.tried.append(
                f"{incident.strategy}: aborted in {incident.phase.value} by the last fault"
            )
        return Move.SPENT, ""

    def advance(self, now: float) -> None:
        """Move on if the event just handled was the last that the phase waited for."""
        if self.incident is not None:
            self._drive(self._works[self.incident.phase].finished(self.incident), now)

    def alone(self, why: str, now: float) -> None:
        """Continue without the advisor's strategy, if the incident waits for it. `why`: "" if it
        has come."""
        if self.incident is not None and self.incident.consults:
            if why:
                own = f"continuing with this manager's own choice, {self.incident.strategy}"
                self._job.note(f"{why}: {own}")
                self._unadvised(now)
            self.incident.consults = False
            self.advance(now)

    # -- faults ------------------------------------------------------------------------------------

    def join(
        self,
        text: str,
        explains: bool = True,
        *,
        now: float,
        kind: from_rank.RankFaulted | None = None,
        since: float = inf,
    ) -> Incident:
        """Add a fault to the current incident, or open one. `explains`: see Incident.add. `kind`:
        the report of a rank that gave the type of its fault. `since`: when it made the job stand
        still, if that was earlier."""
        if self.incident is None:
            self._open(min(since, now))
        assert self.incident is not None
        if kind is not None:
            self.incident.kinds[kind.rank] = kind.fault
        self._job.note(self.incident.add(text, explains), journaled=True)
        self.incident.tell_fault(self._job, text)
        return self.incident

    def _open(self, since: float) -> None:
        self.incidents += 1
        incident = self.incident = Incident(self.incidents, since)
        incident.rungs, incident.leaving = self._job.rungs, self._job.leaves
        incident.consults = self._job.advised and not incident.rungs
        incident.enter(Phase.DETECT, since)
        self.rounds.count(incident, incident.miss(self._job))

    def fault(
        self,
        text: str,
        now: float,
        *,
        dead: frozenset[int] = NOBODY,
        evicted: Mapping[int, str] | None = None,
        hung: frozenset[int] = NOBODY,
        kind: from_rank.RankFaulted | None = None,
        of: Iterable[int] = NOBODY,
        since: float = inf,
    ) -> None:
        """Add a fault and start the round that handles it. `dead`: ranks without a process.
        `evicted`: living ranks whose process cannot be kept, and why; of these, `hung` dump their
        stacks before they are killed. `of`: other ranks at fault. `since`: see join."""
        if self._job.closing:  # by an earlier fault of the same event
            return
        incident = self.join(text, now=now, kind=kind, since=since)
        incident.hung |= hung
        self.rounds.count(incident, {*dead, *(evicted or ()), *of})
        if evicted:
            self.evict(evicted, now)
        else:
            self.again(now, dead)

    def evict(self, ranks: Mapping[int, str], now: float) -> None:
        """Start a round that replaces the processes of `ranks`."""
        assert self.incident is not None
        self._drive(self.rounds.evict(self.incident, ranks), now)

    def again(self, now: float, dead: frozenset[int] = NOBODY) -> None:
        """Start another round."""
        assert self.incident is not None
        self._drive(self.rounds.another(self.incident, dead), now)

    def spent(self, why: str, now: float) -> None:
        """Fail the current strategy."""
        if not self._job.closing:
            self._drive((Move.SPENT, why), now)

    def expected(self, number: int) -> bool:
        """Whether rank `number` died because it was evicted, which is no further fault."""
        return self.incident is not None and number in self.incident.killed

    def evicted(self, number: int, now: float) -> None:
        """An evicted rank is dead, as expected."""
        assert self.incident is not None
        self._job.note(f"{self.incident.place}: rank {number} has ended")
        self.again(now, frozenset({number}))

    def lost(self, number: int, why: str, now: float) -> None:
        """Node `number` no longer responds."""
        if self.moves(number):
            self.fault(f"{self._moving.cannot(number)}: {why}", now)
            return
        self.nodes.lose(number)
        self._lost(number, why, now)

    def give_up(self, number: int, why: str, now: float) -> None:
        """Stop using node `number`, whose agent may be healthy."""
        if self.moves(number):
            self.fault(f"{self._moving.cannot(number)}: {why}", now)
        # or its former agent was lost, and the node with it
        if self._job.closing or not self._job.topology.nodes[number].living:
            return
        self.nodes.give_up(number, why)
        self._lost(number, why, now)

    def _lost(self, number: int, why: str, now: float) -> None:
        ranks = tuple(r for r in self._job.topology.nodes[number].ranks if r in self._job.ranks)
        if not ranks:  # all of them are away
            self.nodes.lost_away(number, why)
            return
        if self.incident is not None:
            self.incident.forget(ranks)
        self._job.journal("lost", node=number, why=why)
        span = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]}-{ranks[-1]}"
        self.fault(f"node {number} ({span}): {why}", now, dead=frozenset(ranks))
        self.nodes.keep_records()

    # -- reports of ranks in an incident -----------------------------------------------------------

    def interrupted(self, event: from_rank.RankInterrupted, now: float) -> None:
        incident = self._in(Phase.INTERRUPT)
        if incident is None or event.interruption != self._job.interruption:
            return
        incident.witnesses.hear(event.position)
        kept = event.rank not in incident.killed
        if kept and (why := event.unfit):
            text = f"rank {event.rank} cannot be kept: {why}"
            self.fault(text, now, evicted={event.rank: why})
        elif kept and event.rank not in incident.new:
            incident.round.reports[event.rank] = event.position
            incident.idled(event.idle)
            incident.round.times.note(times.INTERRUPTED, event.rank, self._job.at)
            self.advance(now)

    def busy(self, event: from_agent.RankBusy, now: float) -> None:
        incident = self._in(Phase.INTERRUPT)
        if incident is None or event.interruption != self._job.interruption:
            return
        if self._interrupt.running(incident, event.rank) and not incident.stood_still:
            incident.extend(min(now + event.allowance, incident.latest))

    def reset(self, now: float) -> None:
        """A device may have been reset: start the processes that wait for that."""
        if (incident := self.incident) is None:
            return
        if incident.strategy not in ladder.KEEPING and incident.phase in EARLY:
            self.rounds.replace(incident)
            if incident.phase is Phase.REPLACE:
                self._replace.wait(incident, now)
        self.advance(now)

    def ready(self, event: from_rank.RankReady, now: float) -> None:
        if self.incident is not None and event.rank in self.incident.new:
            self.incident.ready.add(event.rank)
            self.incident.round.times.note(times.READY, event.rank, self._job.at)
            self.advance(now)

    def rebuilt(self, event: from_rank.RankRebuilt, now: float) -> None:
        incident = self._in(Phase.REBUILD)
        if incident is not None and event.generation == self._job.generation:
            incident.round.rebuilt.add(event.rank)
            incident.rebuild_reported.add(event.rank)
            incident.round.times.note(times.REBUILT, event.rank, self._job.at)
            self.advance(now)

    def restored(self, event: from_rank.RankRestored, now: float) -> None:
        incident = self._in(Phase.RESTORE)
        if incident is not None and event.generation == self._job.generation:
            incident.round.restored[event.rank] = event.digest
            incident.round.loaded = event.loaded
            incident.round.times.note(times.RESTORED, event.rank, self._job.at)
            self.advance(now)

    def committed(self, rank: int, now: float) -> None:
        """The rank has committed the step, or need not: it has finished, paused or exited."""
        if (incident := self._in(Phase.RESUME)) is not None:
            incident.round.committed.add(rank)
            incident.round.times.note(times.COMMITTED, rank, self._job.at)
            self.advance(now)

    def _in(self, phase: Phase) -> Incident | None:
        """Return the incident, if it is in `phase`."""
        return self.incident if self.phase is phase else None

    def silent(self) -> list[int]:
        """The ranks that the current phase waits for."""
        incident = self.incident
        return self._works[incident.phase].silent(incident) if incident is not None else []

    # -- the dump ----------------------------------------------------------------------------------

    def saved(
        self, event: from_rank.StateSaved | from_agent.RecordsSaved | from_agent.Sealed, now: float
    ) -> None:
        """A part of the dump has been written, or could not be; or the dump is complete."""
        incident = self._in(Phase.DUMP)
        current = event.interruption == self._job.interruption and not self._job.closing
        if incident is not None and current:
            self._drive(self._save.took(incident, event), now)

    # -- nodes -------------------------------------------------------------------------------------

    def took(self, event: from_agent.RecordsTaken, now: float) -> None:
        """Stand-ins have the records of the ranks they stand in for."""
        incident = self._in(Phase.RESCHEDULE)
        if incident is not None and event.interruption == self._job.interruption:
            self.elastic.took(incident, event)
            self.advance(now)

    def moves(self, number: int) -> bool:
        """Whether a standby is taking over node `number` from its healthy agent."""
        return self._moving.leg(number) is not None

    @property
    def _moving(self) -> Moving:
        moving = self.incident.moving if self.incident is not None else None
        return moving if moving is not None else Moving((), "")

    def switch(self, moving: Moving, now: float) -> None:
        """Move nodes to the standbys that are ready; all ranks are paused before the same step."""
        incident = self.join(f"{moving.words}: {moving.why}", now=now)
        incident.moving = moving
        # `retry` even if not configured: if the move fails, all ranks continue as they were
        incident.rungs = (moving.strategy, *self._job.settings.with_retry)
        self.again(now)

    def leave(self, text: str, rungs: tuple[str, ...], now: float, latest: float = inf) -> None:
        """End the job, by `rungs`. `latest`: see Incident."""
        incident = self.join(text, now=now)
        incident.latest = min(incident.latest, latest)
        incident.narrow(rungs)
        if incident.strategy not in rungs:  # else it is already ending
            self.again(now)

    def former_lost(self, event: e.FormerLost, now: float) -> None:
        """The former agent of the moving node is gone."""
        self._job.election.depart(event.agent)
        leg = self._moving.leg(event.node)
        if leg is not None and leg.before is not None and leg.before.agent == event.agent:
            leg.former_lost = event.why
            self._job.note(f"node {event.node}, which moves: its former agent is gone: {event.why}")

    def standby(self, now: float) -> None:
        """Another standby is available."""
        if (incident := self.incident) is not None and incident.strategy == "recover":
            self.nodes.assign(incident)
            if incident.phase is Phase.RESCHEDULE:
                self._reschedule.wait(incident, now)

    # -- time --------------------------------------------------------------------------------------

    @property
    def deadline(self) -> float | None:
        incident = self.incident
        return self._works[incident.phase].due(incident) if incident is not None else None

    def tick(self, now: float) -> None:
        incident = self.incident
        if incident is None or (due := self.deadline) is None or now < due:
            return
        if incident.phase is Phase.INTERRUPT and now < incident.deadline:
            self._interrupt.ask_again(incident, self.silent())
        else:
            self._too_late(incident, now)

    def _too_late(self, incident: Incident, now: float) -> None:
        """The phase's time is up: evict the ranks it waits for; if that cannot help, the strategy
        has failed."""
        phase = incident.phase
        if phase is Phase.CONSULT:
            limit = self._job.settings.advice
            self.alone(f"the advisor has not named a strategy within {limit:g} s", now)
        elif (late := self._works[phase].late(incident)) is not None:
            self._drive(late, now)
        elif phase is Phase.RESCHEDULE:
            for number, why in self._reschedule.overdue():
                self.lost(number, why, now)
                if self.phase is not phase:
                    return
        else:
            seconds = now - incident.timeline.entered[-1][1]
            mute = dict.fromkeys(self.silent(), f"silent in {phase.value} for {seconds:.0f} s")
            self.join(listed(mute), now=now)
            incident.silent(mute, of=len(self._job.ranks))
            self._drive(self.rounds.evict(incident, mute, Move.DEADLINE), now)

"""Drives the incident under way: events in, moves out; `_drive` is the only loop that makes moves.

A fault opens an incident or joins the current one. `rounds.py` and `actions.py` choose the next
move, and `phases.py` has the phase it leads to; the driver makes moves until the incident has to
wait for a rank, an agent or a deadline. `core/faults.py` decides what a fault means.
"""

from __future__ import annotations

from collections.abc import Mapping

from taskd.core import events as e
from taskd.core.incident import ladder, times
from taskd.core.incident.actions import Actions
from taskd.core.incident.checkpoint import Checkpoint
from taskd.core.incident.dump import Dump
from taskd.core.incident.phases import TABLE, Move, Phase, after
from taskd.core.incident.rounds import NOBODY, Next, Rounds, listed
from taskd.core.incident.state import Incident, Moving
from taskd.core.incident.takeover import Takeover
from taskd.core.pause import Pause
from taskd.core.state import JobState, Part
from taskd.messages import from_agent, from_rank


class Recovery(Part):
    """Handles the incident of a job, if any. Methods that take a rank's report are called only for
    current incarnations in a protected job."""

    def __init__(self, job: JobState, pause: Pause) -> None:
        self._job = job
        self.nodes = Takeover(job)
        self.rounds = Rounds(job, self.nodes)
        self._actions = Actions(job, pause, self.nodes, self.rounds)
        self.incident: Incident | None = None
        self.incidents = 0

    @property
    def phase(self) -> Phase | None:
        return self.incident.phase if self.incident is not None else None

    def drop(self, why: str) -> None:
        """The processes that were repaired are gone."""
        if self.incident is not None and self.incident.moving is not None:
            self.nodes.put_back(self.incident, "all ranks are restarted")
        self.incident, self._actions.resumed = None, None

    # -- the loop ----------------------------------------------------------------------------------

    def _drive(self, following: Next, now: float) -> None:
        """Make the next move, and all those that follow from it."""
        incident = self.incident
        assert incident is not None
        while following is not None:
            move, why = self._with_a_strategy(incident, *following)
            incident.enter(after(incident.phase, move), now)
            incident.tell_phase(self._job)
            incident.deadline = now + self._actions.limit(incident.phase)
            following = self._actions.enter(incident, why, now) or self._actions.finished(incident)
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
            self._drive(self._actions.finished(self.incident), now)

    def alone(self, why: str, now: float) -> None:
        """Go on without the advisor's word, if it is awaited. `why`: "" if it has come."""
        incident = self.incident
        if incident is not None and incident.consults:
            incident.consults = False
            if why:
                own = f"continuing with this manager's own choice, {incident.strategy}"
                self._job.note(f"{why}: {own}")
            self.advance(now)

    # -- faults ------------------------------------------------------------------------------------

    def join(
        self,
        text: str,
        explains: bool = True,
        *,
        now: float,
        kind: from_rank.RankFaulted | None = None,
    ) -> Incident:
        """Add a fault to the current incident, or open one. `explains`: see Incident.add. `kind`:
        the report, of a rank that told its type."""
        if self.incident is None:
            self._open(now)
        incident = self.incident
        assert incident is not None
        if kind is not None:
            incident.kinds[kind.rank] = kind.fault
        self._job.note(incident.add(text, explains), told=True)
        incident.tell_fault(self._job, text)
        return incident

    def _open(self, now: float) -> None:
        self.incidents += 1
        incident = self.incident = Incident(self.incidents, now)
        incident.consults = self._job.advised and self._job.repairs
        if not self._job.repairs:
            incident.rungs = tuple(s for s in self._job.settings.ladder if s in ladder.ENDING)
            self._job.note("recovery is paused: nothing is repaired")
        incident.enter(Phase.DETECT, now)
        for rank, how in self._job.take_for_dead().items():
            incident.faults.append(f"rank {rank}: {how}")
            incident.tell_fault(self._job, incident.faults[-1])
            self._job.note(f"incident {incident.number}: rank {rank}: {how}", told=True)

    def fault(
        self,
        text: str,
        now: float,
        *,
        dead: frozenset[int] = NOBODY,
        evicted: Mapping[int, str] | None = None,
        hung: frozenset[int] = NOBODY,
        kind: from_rank.RankFaulted | None = None,
    ) -> None:
        """Add a fault and start the round that handles it. `dead`: ranks without a process.
        `evicted`: living ranks whose process cannot be kept, and why; of these, `hung` dump their
        stacks before they are killed."""
        if self._job.closing:  # by an earlier fault of the same event
            return
        self.join(text, now=now, kind=kind).hung |= hung
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
        assert self.phase is not None and self.incident is not None
        self._job.note(
            f"incident {self.incident.number}, {self.phase.value}: rank {number} has ended"
        )
        self.again(now, frozenset({number}))

    def lost(self, number: int, why: str, now: float) -> None:
        """Node `number` no longer responds."""
        if self.moves(number):
            self.fault(f"node {number} cannot move: {why}", now)
            return
        self.nodes.lose(number)
        self._lost(number, why, now)

    def give_up(self, number: int, why: str, now: float) -> None:
        """Stop using node `number`, whose agent may be healthy."""
        if self.moves(number):
            self.fault(f"node {number} cannot move: {why}", now)
        # or its former agent was lost, and the node with it
        if self._job.closing or not self._job.topology.nodes[number].living:
            return
        self.nodes.give_up(number, why)
        self._lost(number, why, now)

    def _lost(self, number: int, why: str, now: float) -> None:
        ranks = self._job.topology.nodes[number].ranks
        if self.incident is not None:
            self.incident.forget(ranks)
        self._job.tell("lost", node=number, why=why)
        span = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]}-{ranks[-1]}"
        self.fault(f"node {number} ({span}): {why}", now, dead=frozenset(ranks))
        self.nodes.keep_records()

    # -- reports of ranks in an incident -----------------------------------------------------------

    def interrupted(self, event: from_rank.RankInterrupted, now: float) -> None:
        incident = self.incident
        if (
            incident is None
            or event.interruption != self._job.interruption
            or incident.phase is not Phase.INTERRUPT
            or event.rank in incident.killed
        ):
            return
        if event.unfit:
            why = {event.rank: event.unfit}
            self.fault(f"rank {event.rank} cannot be kept: {event.unfit}", now, evicted=why)
        elif event.rank not in incident.new:
            incident.round.reports[event.rank] = event.position
            incident.round.times.note(times.INTERRUPTED, event.rank, self._job.at)
            self.advance(now)

    def busy(self, event: from_agent.RankBusy, now: float) -> None:
        incident = self.incident
        if (
            incident is None
            or incident.phase is not Phase.INTERRUPT
            or event.interruption != self._job.interruption
        ):
            return
        if self._actions.running(incident, event.rank):
            incident.deadline = max(incident.deadline, now + event.allowance)

    def reset(self, now: float) -> None:
        """A device may have been reset."""
        if self.incident is not None:
            self._actions.reset(self.incident, now)
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
        """Return the ranks that the current phase waits for."""
        return self._actions.silent(self.incident) if self.incident is not None else []

    # -- the dump ----------------------------------------------------------------------------------

    def saved(self, event: from_rank.StateSaved | from_agent.RecordsSaved, now: float) -> None:
        """A part of the dump has been written, or could not be."""
        if (saving := self._saving(event.interruption)) is None:
            return
        if isinstance(event, from_rank.StateSaved):
            saving.saved_by(event.rank)
        elif event.why:
            self.spent(f"node {event.node} could not save its ranks' records: {event.why}", now)
            return
        elif isinstance(saving, Dump):
            saving.waiting.discard(event.node)
        saving.files += event.files
        saving.advance(self._job)
        if saving.done:
            self._drive((Move.SAVED, f"dump: done, {saving.done}"), now)

    def sealed(self, event: from_agent.Sealed, now: float) -> None:
        if (saving := self._saving(event.interruption)) is None:
            return
        if event.why:
            self.spent(f"the dump could not be sealed: {event.why}", now)
            return
        done = f"the state at the start of step {saving.step} is at {event.path}"
        self._drive((Move.SAVED, f"dump: done, {done}"), now)

    def _saving(self, interruption: int) -> Dump | Checkpoint | None:
        """Return the dump that is being written in the round of `interruption`."""
        incident = self._in(Phase.DUMP)
        current = incident is not None and interruption == self._job.interruption
        return incident.round.dump if incident is not None and current else None

    # -- nodes -------------------------------------------------------------------------------------

    def moves(self, number: int) -> bool:
        """Whether a standby is taking over node `number` from its healthy agent."""
        moving = self.incident.moving if self.incident is not None else None
        return moving is not None and moving.node == number

    def switch(self, moving: Moving, now: float) -> None:
        """Move a node to the standby that is ready; all ranks are paused before the same step."""
        incident = self.join(f"node {moving.node} moves: {moving.why}", now=now)
        incident.moving = moving
        # `retry` even if not configured: if the move fails, all ranks continue as they were
        incident.rungs = (
            ladder.HOT_SWITCH,
            *(s for s in ladder.STRATEGIES if s == "retry" or s in self._job.settings.ladder),
        )
        self.again(now)

    def leave(self, text: str, rungs: tuple[str, ...], now: float) -> None:
        """End the job, by `rungs`."""
        incident = self.join(text, now=now)
        incident.rungs, incident.leaving = rungs, True
        if incident.strategy not in rungs:  # otherwise it is already ending
            self.again(now)

    def former_lost(self, event: e.FormerLost) -> None:
        """The former agent of the moving node is gone."""
        moving = self.incident.moving if self.incident is not None else None
        if moving is not None and moving.before is not None and moving.before.agent == event.agent:
            moving.former_lost = event.why
            self._job.note(f"node {event.node}, which moves: its former agent is gone: {event.why}")

    def standby(self, now: float) -> None:
        """Another standby is available."""
        incident = self.incident
        if incident is not None and incident.strategy == "recover":
            self.nodes.assign(incident)
            if incident.phase is Phase.RESCHEDULE:
                self._actions.wait_for_nodes(incident, now)

    # -- time --------------------------------------------------------------------------------------

    @property
    def deadline(self) -> float | None:
        return self._actions.due(self.incident) if self.incident is not None else None

    def tick(self, now: float) -> None:
        incident = self.incident
        if incident is None or (due := self.deadline) is None or now < due:
            return
        if incident.phase is Phase.INTERRUPT and now < incident.deadline:
            self.rounds.ask_again(incident, self.silent())
        elif incident.phase is Phase.RESCHEDULE and incident.moving is None:
            self._not_taken(incident, now)
        else:
            self._too_late(incident, now)

    def _too_late(self, incident: Incident, now: float) -> None:
        """The phase's time is up: evict the ranks it waits for; if that cannot help, the strategy
        has failed."""
        phase, silent = incident.phase, self.silent()
        if phase is Phase.CONSULT:
            limit = self._job.settings.advice
            self.alone(f"ClusterD has not named a strategy within {limit:g} s", now)
        elif (late := self._actions.late(incident)) is not None:
            self._drive(late, now)
        else:
            seconds = now - incident.timeline.entered[-1][1]
            mute = dict.fromkeys(silent, f"silent in {phase.value} for {seconds:.0f} s")
            self.join(listed(mute), now=now)
            incident.hung |= set(silent)
            self._drive(self.rounds.evict(incident, mute, Move.DEADLINE), now)

    def _not_taken(self, incident: Incident, now: float) -> None:
        """The time to replace lost nodes is up."""
        topology, settings = self._job.topology, self._job.settings
        waiting = [n for n in topology.lost if not topology.nodes[n].assignee]
        if waiting:
            reachable, everybody = self._job.reachable()
            why = (
                "no standby came for"
                if not topology.standbys
                else f"only {reachable} of {everybody} agents are reachable, no majority, for"
            )
            why = f"{why} node {waiting[0]} within {settings.reschedule:.0f} s"
            self._drive((Move.DEADLINE, why), now)
            return
        for number in topology.lost:
            assignee, limit = topology.nodes[number].assignee, f"{settings.take_over:.0f} s"
            why = f"it has not taken node {number} over within {limit}"
            self._job.fence(assignee, number, why)
            self.lost(number, f"standby {assignee[:8]} has not taken it over within {limit}", now)
            if self.phase is not Phase.RESCHEDULE:
                return

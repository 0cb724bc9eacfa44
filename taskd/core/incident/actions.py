"""The actions on entering a phase, and what each phase waits for.

`enter` and `finished` return the next move and why, or None while the incident has to wait;
`driver.py` makes the move.
"""

from __future__ import annotations

from collections.abc import Callable

from taskd.core import optimizer_replicas, repair, replica_sets
from taskd.core.abbreviate import abbreviate
from taskd.core.incident import checkpoint, dump, outcome
from taskd.core.incident.phases import Move, Phase
from taskd.core.incident.rounds import Next, Rounds
from taskd.core.incident.state import Incident
from taskd.core.incident.takeover import Takeover
from taskd.core.pause import Pause
from taskd.core.pending import PendingSet
from taskd.core.state import JobState
from taskd.messages import to_rank


class Actions:
    def __init__(self, job: JobState, pause: Pause, nodes: Takeover, rounds: Rounds) -> None:
        self._job, self._pause, self._nodes, self._rounds = job, pause, nodes, rounds
        self.resumed: int | None = None  # step of the last repair's plan
        self._running = PendingSet()  # ranks that have not stopped yet
        self._enter: dict[Phase, Callable[[Incident, str, float], Next]] = {
            Phase.INTERRUPT: self._interrupt,
            Phase.CONSULT: self._consult,
            Phase.RESCHEDULE: self._reschedule,
            Phase.DECIDE: self._decide,
            Phase.REPLACE: self._wait_for_devices,
            Phase.REBUILD: self._rebuild,
            Phase.RESTORE: self._restore,
            Phase.RESUME: self._resume,
            Phase.DUMP: self._wait,
            Phase.FAILED: self._climb,
            Phase.CLOSED: self._close,
            Phase.ENDED: self._end,
        }
        self._finished: dict[Phase, Callable[[Incident], Next]] = {
            Phase.INTERRUPT: self._all_stopped,
            Phase.CONSULT: self._advised,
            Phase.RESCHEDULE: self._all_taken,
            Phase.REPLACE: self._all_ready,
            Phase.REBUILD: self._all_rebuilt,
            Phase.RESTORE: self._all_restored,
            Phase.RESUME: self._all_committed,
        }

    def enter(self, incident: Incident, why: str, now: float) -> Next:
        """Act on the phase just entered; `why`: the reason, where it is not obvious."""
        return self._enter[incident.phase](incident, why, now)

    def finished(self, incident: Incident) -> Next:
        """Return the next move, once the phase has nothing left to wait for."""
        finished = self._finished.get(incident.phase)
        return finished(incident) if finished is not None else None

    def limit(self, phase: Phase) -> float:
        """Return the seconds that the phase may take."""
        settings = self._job.settings
        # a framework's handler may take that long, and be called more than once in a phase
        least = 2 * settings.handler if self._job.handlers else 0.0
        return {
            Phase.INTERRUPT: max(settings.interruption, least),
            Phase.REPLACE: max(settings.form, settings.handler if least else 0.0),
            Phase.REBUILD: max(settings.rebuild, least),
            Phase.RESTORE: max(settings.restore, least),
            Phase.RESUME: max(settings.resume, settings.form),
            Phase.DUMP: settings.dump,
        }.get(phase, 0.0)

    # -- on entering -------------------------------------------------------------------------------

    def _wait(self, incident: Incident, why: str, now: float) -> Next:
        return None

    def _interrupt(self, incident: Incident, why: str, now: float) -> Next:
        assert incident.rung is not None
        self._rounds.begin(incident, incident.rung, now)
        return None

    def _consult(self, incident: Incident, why: str, now: float) -> Next:
        # one time limit for the incident, however many rounds it has
        if incident.consulted is None:
            incident.consulted = now
        incident.deadline = incident.consulted + self._job.settings.advice
        return None

    def _reschedule(self, incident: Incident, why: str, now: float) -> Next:
        self.wait_for_nodes(incident, now)
        return None

    def wait_for_nodes(self, incident: Incident, now: float) -> None:
        """Set the deadline of RESCHEDULE."""
        settings, topology = self._job.settings, self._job.topology
        if incident.missing is None:
            incident.missing = now
        soonest = now + settings.take_over
        waits = any(not topology.nodes[n].assignee for n in topology.lost)
        incident.deadline = (
            max(incident.missing + settings.reschedule, soonest) if waits else soonest
        )

    def _decide(self, incident: Incident, why: str, now: float) -> Next:
        """Decide at which step to resume, and whose state to use."""
        members = [self._member(incident, number) for number in self._job.ranks]
        job = self._job
        steps = (m.position.step for m in members if m.position is not None)
        incident.round.reached = max(steps, default=-1)
        if job.handlers and all(m.position is None or not m.position.step for m in members):
            job.restart = f"{incident.faults[-1]}; {optimizer_replicas.NO_STEP}"
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
            optimizer_replicas.plan(members, job.optimizers)
            if job.handlers
            else repair.plan(members, self.resumed)
        )
        if isinstance(plan, repair.Refusal):
            return Move.REFUSED, plan.reason
        incident.round.plan, self.resumed = plan, plan.step
        incident.round.members = members
        self._job.note(f"repair: {plan.reason}")
        return Move.PLANNED, ""

    def _member(self, incident: Incident, number: int) -> repair.Member:
        rank, node = self._job.ranks[number], self._job.topology.node_of(number)
        new = number in incident.new or not rank.alive
        position = rank.left if new else incident.round.reports.get(number)
        if position is not None and number in incident.divergent:
            position = position.but(clean=None, stripes=frozenset())
        return repair.Member(number, -1 if node is None else node, not new, position)

    def _wait_for_devices(self, incident: Incident, why: str, now: float) -> Next:
        self.wait_for_devices(incident, now)
        return None

    def wait_for_devices(self, incident: Incident, now: float) -> None:
        """Set the deadline of REPLACE. It has one for all resets, however many rounds there are."""
        incident.deadline = now + self.limit(Phase.REPLACE)
        if self._rounds.waiting():
            if incident.resets is None:
                incident.resets = now
            incident.deadline = incident.resets + self._job.settings.reset

    def reset(self, incident: Incident, now: float) -> None:
        """A device may have been reset: start the processes that wait for that."""
        early = (Phase.INTERRUPT, Phase.CONSULT, Phase.RESCHEDULE, Phase.REPLACE)
        if incident.strategy == "dump" or incident.phase not in early:
            return
        self._rounds.replace(incident)
        if incident.phase is Phase.REPLACE:
            self.wait_for_devices(incident, now)

    def late(self, incident: Incident) -> Next:
        """The phase's time is up: how the strategy fails, or None if evicting the ranks that it
        waits for can help."""
        settings, phase, silent = self._job.settings, incident.phase, self.silent(incident)
        if phase is Phase.RESCHEDULE and incident.moving is not None:
            assignee, node = incident.moving.assignee[:8], incident.moving.node
            why = f"standby {assignee} has not taken node {node} over"
            return Move.DEADLINE, f"{why} within {settings.take_over:.0f} s"
        if phase is Phase.DUMP:
            return Move.DEADLINE, f"the state was not saved within {settings.dump:.0f} s"
        if phase is Phase.REPLACE and (waiting := self._rounds.waiting()):
            rank = min(waiting)
            why = f"the device of rank {rank} was not reset within {settings.reset:.0f} s"
            return Move.DEADLINE, f"{why} ({waiting[rank]})"
        if phase is Phase.REPLACE:
            why = f"the replacement of ranks [{abbreviate(silent)}] was not ready"
            return Move.DEADLINE, f"{why} within {settings.form:.0f} s"
        if undead := [r for r in silent if r in incident.killed]:
            why = f"ranks [{abbreviate(undead)}] were still alive"
            return Move.SPENT, f"{why} {settings.kill:.0f} s after SIGKILL"
        return None

    def _rebuild(self, incident: Incident, why: str, now: float) -> Next:
        self._job.generation += 1
        self._job.rebuild(tuple(sorted(incident.new)))
        return None

    def _restore(self, incident: Incident, why: str, now: float) -> Next:
        assert incident.round.plan is not None
        self._job.say(
            to_rank.Restore(self._job.interruption, self._job.generation, incident.round.plan)
        )
        return None

    def _resume(self, incident: Incident, why: str, now: float) -> Next:
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
        return None

    def _climb(self, incident: Incident, why: str, now: float) -> Next:
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

    def _close(self, incident: Incident, why: str, now: float) -> Next:
        outcome.close(self._job, incident, now)
        return None

    def _end(self, incident: Incident, why: str, now: float) -> Next:
        """End the job. `why`: the dump that was saved; "" if no strategy is left."""
        passed_over: list[str] = []
        if why:
            incident.tried.append(why)
        elif incident.rung is not None:
            failed = "it has failed in this incident"
            passed_over = [s for s in incident.rung.skipped if failed not in s]
        outcome.give_up(self._job, incident, passed_over, now)
        return None

    # -- what each phase waits for -----------------------------------------------------------------

    def _all_stopped(self, incident: Incident) -> Next:
        if incident.killed or self.any_running(incident):
            return None
        suspects, incident.suspects, incident.blamed = incident.suspects, {}, None
        if suspects:
            # an interruption cannot find hung replacements: they have nothing to report to it
            silent = incident.new - incident.rebuild_reported
            mute = dict.fromkeys(silent, "it has been silent since it was ready")
            return self._rounds.evict(incident, {**mute, **suspects})
        if incident.consults and incident.strategy != "dump" and incident.moving is None:
            return Move.ASKED, ""
        return self._stopped(incident)

    def _stopped(self, incident: Incident) -> Next:
        missing = self._job.topology.lost and incident.strategy != "dump"
        return (Move.MISSED if missing else Move.INTERRUPTED), ""

    def _advised(self, incident: Incident) -> Next:
        return None if incident.consults else self._stopped(incident)

    def due(self, incident: Incident) -> float:
        """When the phase's time is up, or ranks are to be asked again to stop."""
        waiting = incident.phase is Phase.INTERRUPT and not incident.round.asked_again
        if waiting and self.any_running(incident):
            entered = incident.timeline.entered[-1][1]
            return min(incident.deadline, entered + self._job.settings.interrupt_again)
        return incident.deadline

    def any_running(self, incident: Incident) -> bool:
        """Whether INTERRUPT waits for the report of any rank."""
        return self._running.any(self._job.ranks, lambda r: self.running(incident, r))

    def running(self, incident: Incident, number: int) -> bool:
        """Whether INTERRUPT waits for this rank's report; deaths of killed ranks are awaited too,
        but not here."""
        if (
            number in incident.round.reports
            or number in incident.killed
            or number in incident.new
            or self._job.topology.is_lost(number)
        ):
            return False
        rank = self._job.ranks[number]
        # `dump` neither replaces nor kills ranks: some have no process, or one that cannot report
        if incident.strategy == "dump":
            return rank.alive and number not in incident.evicted
        return rank.alive or not rank.resetting  # it has no process before its device is reset

    def _all_taken(self, incident: Incident) -> Next:
        if self._job.topology.lost:
            return None
        incident.missing = None
        return Move.TAKEN, ""

    def _all_ready(self, incident: Incident) -> Next:
        ready = incident.new <= incident.ready and not self._rounds.waiting()
        return (Move.READY, "") if ready else None

    def _all_rebuilt(self, incident: Incident) -> Next:
        done = len(incident.round.rebuilt) == len(self._job.ranks)
        return (Move.REBUILT, "") if done else None

    def _all_restored(self, incident: Incident) -> Next:
        """Let ranks resume only if all replicas are equal."""
        restored, plan = incident.round.restored, incident.round.plan
        if len(restored) < len(self._job.ranks):
            return None
        assert plan is not None
        sets = {m.rank: m.replica_set for m in incident.round.members}
        if replica_sets.equal(restored, sets):
            return Move.RESTORED, ""
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

    def _all_committed(self, incident: Incident) -> Next:
        done = len(incident.round.committed) == len(self._job.ranks)
        return (Move.COMMITTED, "") if done else None

    def silent(self, incident: Incident) -> list[int]:
        """Return the ranks that the current phase waits for."""
        everybody, here = set(self._job.ranks), incident.round
        done: dict[Phase, set[int]] = {
            Phase.CONSULT: everybody,
            Phase.RESCHEDULE: everybody - self._job.topology.absent(),
            Phase.REPLACE: everybody - (incident.new - incident.ready),
            Phase.REBUILD: here.rebuilt,
            Phase.RESTORE: set(here.restored),
            Phase.RESUME: here.committed,
        }
        if incident.phase is Phase.INTERRUPT:
            return [
                r for r in sorted(everybody) if self.running(incident, r) or r in incident.killed
            ]
        if incident.phase is Phase.DUMP:
            return here.dump.silent if here.dump is not None else []
        return sorted(everybody - done.get(incident.phase, everybody))

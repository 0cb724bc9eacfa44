"""The incident under way, from round to round: which strategy, which phase, who is waited for, and
what the next step is.

`incident.py` has the phases and every move between them; `ladder.py` chooses the strategy,
`repair.py` the step and the sources of the state. Here they are joined. What a fault means, and
whom it condemns, is decided in `faults.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from taskd.core import commands as c
from taskd.core import dump, ladder, repair
from taskd.core import events as e
from taskd.core.hold import Hold
from taskd.core.incident import Incident, Move, Moving, Phase, after
from taskd.core.listing import some
from taskd.core.reschedule import Reschedule
from taskd.core.state import JobState
from taskd.core.stragglers import Stragglers
from taskd.messages import from_agent, from_rank, to_agent, to_rank

NOBODY: frozenset[int] = frozenset()


class Recovery:
    """Methods that begin with what a rank said are only called for the present incarnation of a
    rank of a protected job."""

    def __init__(self, job: JobState, hold: Hold) -> None:
        self._job, self._hold = job, hold
        self.nodes = Reschedule(job)
        self.incident: Incident | None = None
        self.incidents = 0
        self.resumed: int | None = None  # step of the last repair's plan
        self._stragglers = Stragglers()  # of PAUSE

    @property
    def phase(self) -> Phase | None:
        return self.incident.phase if self.incident is not None else None

    def forget(self) -> None:
        """The processes that were repaired are gone."""
        if self.incident is not None and self.incident.moving is not None:
            self.nodes.put_back(self.incident, "all ranks are restarted")
        self.incident, self.resumed = None, None

    def due(self) -> float | None:
        incident = self.incident
        if incident is None:
            return None
        if incident.phase is Phase.PAUSE and not incident.asked_again and self._pausing():
            return min(
                incident.deadline, incident.timeline.entered[-1][1] + self._job.settings.pause_again
            )
        return incident.deadline

    # -- faults ------------------------------------------------------------------------------------

    def join(self, text: str, now: float, explains: bool = True) -> Incident:
        """One more fault of the present incident, or of a new one, for the log and the report.
        `explains`: it may be why others failed at what they do together."""
        if self.incident is None:
            self.incidents += 1
            self.incident = Incident(self.incidents, now)
            if not self._job.repairs:
                self.incident.rungs = tuple(
                    s for s in self._job.settings.ladder if s in ladder.ENDING
                )
                self._job.note("recovery is paused (process-recover-enable): nothing is repaired")
            self.incident.timeline.enter("DETECT", now)
            for rank, how in self._job.take_for_dead().items():
                self.incident.faults.append(f"rank {rank}: {how}")
                self._job.note(f"incident {self.incident.number}: rank {rank}: {how}")
        incident = self.incident
        incident.faults.append(text)
        if explains:
            incident.broken, incident.suspects = False, {}
            if incident.blamed is not None:
                incident.failures[incident.blamed] -= 1
                incident.blamed = None
        where = f", {incident.phase.value}" if incident.rounds else ""
        self._job.note(f"incident {incident.number}{where}: {text}")
        return incident

    def fault(
        self,
        text: str,
        now: float,
        *,
        dead: frozenset[int] = NOBODY,
        condemned: Mapping[int, str] | None = None,
        hung: frozenset[int] = NOBODY,
        move: Move = Move.FAULT,
    ) -> None:
        """A fault and the round that answers it. `dead`: ranks without a process. `condemned`:
        living ranks whose process cannot be kept, and why; of these, `hung` shall tell where they
        are before they are ended."""
        incident = self.join(text, now)
        incident.hung |= hung
        if condemned:
            self._condemn(condemned, now, move)
        else:
            self.next_round(now, dead, move)

    def _condemn(self, ranks: Mapping[int, str], now: float, move: Move = Move.FAULT) -> None:
        incident = self.incident
        assert incident is not None
        # who is at fault is found out again when everything is as it was
        if incident.moving is not None:
            self.climb(Move.SPENT, incident.faults[-1], now)
            return
        incident.condemned.update(ranks)
        if incident.strategy == "retry":  # it keeps every process
            self.climb(Move.SPENT, _listed(ranks), now)
        else:
            self.next_round(now, move=move)

    def next_round(
        self, now: float, dead: frozenset[int] = NOBODY, move: Move = Move.FAULT
    ) -> None:
        incident, settings = self.incident, self._job.settings
        assert incident is not None
        if incident.moving is not None and incident.rounds:
            self.climb(Move.SPENT, incident.faults[-1], now)
            return
        # which replaces nobody
        lost = dead | set(incident.condemned) if incident.strategy != "dump" else NOBODY
        spent = [r for r in sorted(lost) if incident.replaced[r] >= settings.replacements]
        rounds = incident.rounds - incident.first
        if spent:
            again = (
                "died again"
                if spent[0] in dead
                else f"cannot be kept: {incident.condemned[spent[0]]}"
            )
            self.climb(
                Move.SPENT,
                f"rank {spent[0]} was replaced {incident.replaced[spent[0]]} times and {again}",
                now,
            )
        # each is told by itself
        elif rounds >= settings.rounds + 2 * len(set(incident.replaced) | set(incident.condemned)):
            self.climb(Move.SPENT, f"{rounds} rounds without a committed step", now)
        else:
            self._enter_pause(now, move)

    def ended(self, number: int, now: float) -> bool:
        """Whether the death of rank `number` is that of a condemned rank, and no further fault."""
        incident = self.incident
        if incident is None or number not in incident.killed:
            return False
        self._job.note(
            f"incident {incident.number}, {incident.phase.value}: rank {number} is ended"
        )
        self.next_round(now, frozenset({number}))
        return True

    # -- what ranks say in an incident -------------------------------------------------------------

    def paused(self, event: from_rank.RankPaused, now: float) -> None:
        incident = self.incident
        if (
            incident is None
            or event.pause != self._job.pause
            or incident.phase is not Phase.PAUSE
            or event.rank in incident.killed
        ):
            return
        if event.unfit:
            self.fault(
                f"rank {event.rank} cannot be kept: {event.unfit}",
                now,
                condemned={event.rank: event.unfit},
            )
        elif event.rank not in incident.new:
            incident.reports[event.rank] = event.position
            self.advance(now)

    def busy(self, event: from_agent.RankBusy, now: float) -> None:
        incident = self.incident
        if incident is None or incident.phase is not Phase.PAUSE or event.pause != self._job.pause:
            return
        if self._to_pause(event.rank):
            incident.deadline = max(incident.deadline, now + event.allowance)

    def ready(self, rank: int, now: float) -> None:
        if self.incident is not None and rank in self.incident.new:
            self.incident.ready.add(rank)
            self.advance(now)

    def rebuilt(self, event: from_rank.RankRebuilt, now: float) -> None:
        if self.phase is Phase.REBUILD and event.generation == self._job.generation:
            assert self.incident is not None
            self.incident.rebuilt.add(event.rank)
            self.incident.heard.add(event.rank)
            self.advance(now)

    def restored(self, event: from_rank.RankRestored, now: float) -> None:
        if self.phase is Phase.RESTORE and event.generation == self._job.generation:
            assert self.incident is not None
            self.incident.restored[event.rank] = event.digest
            self.advance(now)

    def committed(self, rank: int, now: float) -> None:
        """The rank has committed the step, or is beyond the need to: finished, held, ended well."""
        if self.phase is Phase.RESUME:
            assert self.incident is not None
            self.incident.committed.add(rank)
            self.advance(now)

    # -- rounds ------------------------------------------------------------------------------------

    def damage(self) -> ladder.Damage:
        job, incident = self._job, self.incident
        gone = {r for r, s in job.ranks.items() if not s.alive}
        dead = gone | incident.new if incident is not None else gone
        lost = {i for i, n in job.topology.nodes.items() if n.lost}
        ended = {r for r, s in job.ranks.items() if s.ended}
        condemned = dict(incident.condemned) if incident is not None else {}
        unusable = {
            r: why
            for r in (gone - job.topology.absent()) | set(condemned)
            if (why := job.ranks[r].unusable)
        }
        living = sum(n.living for n in job.topology.nodes.values()) - len(
            self.nodes.broken(incident)
        )
        moving = incident is not None and incident.moving is not None
        return ladder.Damage(
            frozenset(dead),
            frozenset(lost),
            job.protected,
            frozenset(ended),
            condemned,
            living,
            moving,
            unusable,
        )

    def _enter_pause(self, now: float, move: Move) -> None:
        """The next round: everybody pauses, who is condemned is killed, who has no process gets
        one. Or the end."""
        job, incident = self._job, self.incident
        assert incident is not None
        rung = ladder.choose(
            incident.rungs or job.settings.ladder, self.damage(), incident.failed, incident.strategy
        )
        if rung.strategy == "exit":
            if incident.phase is not Phase.FAILED:  # no rung fits the damage any more
                if incident.rounds:
                    incident.tried.append(
                        f"{incident.strategy}: broken off in {incident.phase.value} by the last"
                        " fault"
                    )
                self._move(Move.SPENT, now)
            self._stop(rung, now)
            return
        self._move(move, now)
        if rung.strategy != incident.strategy:
            passed = f" (passed over: {'; '.join(rung.skipped)})" if rung.skipped else ""
            job.note(f"strategy {rung.strategy}: {rung.reason}{passed}")
            incident.strategy, incident.first = rung.strategy, incident.rounds
        incident.rounds += 1
        incident.asked_again = False
        incident.reports, incident.rebuilt, incident.restored, incident.committed = (
            {},
            set(),
            {},
            set(),
        )
        incident.plan = None
        job.pause += 1
        if rung.strategy == "recover":
            for node in self.nodes.broken(incident):
                self.nodes.give_up(node, incident.faults[-1])
                self._forget(job.topology.nodes[node].ranks)
        job.say(to_rank.Pause(job.pause, incident.faults[-1]))
        if rung.strategy == ladder.HOT_SWITCH:
            self.nodes.move(incident)
        absent = job.topology.absent()
        for number, rank in job.ranks.items() if rung.strategy != "dump" else ():
            if not rank.alive and number not in absent:
                job.say(
                    to_agent.Replace(number, rank.incarnation + 1, incident.renew(number, rank))
                )
        if rung.strategy == "dump":
            self._forget(tuple(r for r, s in job.ranks.items() if not s.alive))
            incident.killed.clear()
        else:
            self.nodes.assign(incident)
        for number, why in sorted(incident.condemned.items()) if rung.strategy != "dump" else ():
            if number not in incident.killed:
                incident.killed[number] = now
                job.say(
                    to_agent.Kill(
                        number, job.ranks[number].incarnation, why, number in incident.hung
                    )
                )
        incident.deadline = max(
            [incident.deadline, *(told + job.settings.kill for told in incident.killed.values())]
        )
        self.advance(now)

    def _forget(self, ranks: tuple[int, ...]) -> None:
        """Of ranks that have no process and get none here: whatever was known of it."""
        incident = self.incident
        assert incident is not None
        for number in ranks:
            for known in (incident.new, incident.ready, incident.heard, incident.hung):
                known.discard(number)
            incident.condemned.pop(number, None)
            incident.killed.pop(number, None)

    def lost(self, number: int, why: str, now: float) -> None:
        """Nobody is heard on node `number` any more."""
        if self.moves(number):
            self.fault(f"node {number} cannot move: {why}", now)
            return
        self.nodes.lose(number)
        ranks = self._job.topology.nodes[number].ranks
        if self.incident is not None:
            self._forget(ranks)
        span = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]}-{ranks[-1]}"
        self.fault(f"node {number} ({span}): {why}", now, dead=frozenset(ranks))
        self.nodes.keep_records()

    def remind(self) -> None:
        """All agents of the boundary that there is, or that there is none."""
        self._hold.remind()

    def moves(self, number: int) -> bool:
        """Whether a standby is about to become node `number`, whose agent is well."""
        return (
            self.incident is not None
            and self.incident.moving is not None
            and self.incident.moving.node == number
        )

    # -- nodes that are sub-healthy ----------------------------------------------------------------

    def switch(self, moving: Moving, now: float) -> None:
        """All ranks stand before the same step: the node's move to a standby that is ready."""
        incident = self.join(f"node {moving.node} moves: {moving.why}", now)
        incident.moving = moving
        # should it fail, all go on as they were, whatever is configured for faults
        incident.rungs = (
            ladder.HOT_SWITCH,
            *(s for s in ladder.STRATEGIES if s == "retry" or s in self._job.settings.ladder),
        )
        self.next_round(now)

    def leave(self, text: str, rungs: tuple[str, ...], now: float) -> None:
        """The job shall end, by `rungs`."""
        incident = self.join(text, now)
        incident.rungs, incident.leaving = rungs, True
        if incident.strategy not in rungs:  # else it is on its way
            self.next_round(now)

    def former_lost(self, event: e.FormerLost) -> None:
        moving = self.incident.moving if self.incident is not None else None
        if moving is not None and moving.before is not None and moving.before.agent == event.agent:
            moving.former_lost = event.why
            self._job.note(
                f"node {event.node}, which moves: the agent that had it is gone: {event.why}"
            )

    def standby(self, now: float) -> None:
        """Another standby is there."""
        incident = self.incident
        if incident is not None and incident.strategy == "recover":
            self.nodes.assign(incident)
            if incident.phase is Phase.RESCHEDULE:
                self._wait_for_nodes(now)

    def _wait_for_nodes(self, now: float) -> None:
        """Set the deadline of RESCHEDULE."""
        incident, settings = self.incident, self._job.settings
        assert incident is not None
        if incident.missing is None:
            incident.missing = now
        waits = any(not self._job.topology.nodes[n].heir for n in self._job.topology.lost)
        soonest = now + settings.take_over
        incident.deadline = (
            max(incident.missing + settings.reschedule, soonest) if waits else soonest
        )

    def advance(self, now: float) -> None:
        """Leave every phase whose condition holds."""
        job, incident = self._job, self.incident
        while incident is not None and incident.phase not in (
            Phase.CLOSED,
            Phase.ENDED,
            Phase.FAILED,
        ):
            before = incident.phase
            if before is Phase.PAUSE and not incident.killed and not self._pausing():
                suspects, incident.suspects, incident.blamed = incident.suspects, {}, None
                # and replacements that may hang, which no pause finds: they have nothing to report
                # to it
                if suspects:
                    mute = dict.fromkeys(
                        incident.new - incident.heard, "it has given no sign since it was ready"
                    )
                    self._condemn({**mute, **suspects}, now)
                    return
                if job.topology.lost and incident.strategy != "dump":
                    self._move(Move.MISSED, now)
                    self._wait_for_nodes(now)
                else:
                    self._move(Move.PAUSED, now)
                    self._decide(now)
            elif before is Phase.RESCHEDULE and not job.topology.lost:
                incident.missing = None
                self._move(Move.TAKEN, now)
                self._decide(now)
            elif before is Phase.REPLACE and incident.new <= incident.ready:
                self._move(Move.READY, now)
                job.generation += 1
                job.rebuild(same=not incident.new)
            elif before is Phase.REBUILD and len(incident.rebuilt) == len(job.ranks):
                self._move(Move.REBUILT, now)
                assert incident.plan is not None
                job.say(to_rank.Restore(job.pause, job.generation, incident.plan))
            elif before is Phase.RESTORE and len(incident.restored) == len(job.ranks):
                self._compare(now)
            elif before is Phase.RESUME and len(incident.committed) == len(job.ranks):
                self._close(now)
            if self.incident is None or incident.phase is before:
                return

    def silent(self) -> list[int]:
        """Ranks that the present phase is waiting for."""
        incident = self.incident
        if incident is None:
            return []
        everybody, absent = set(self._job.ranks), self._job.topology.absent()
        done: dict[Phase, set[int]] = {
            Phase.PAUSE: {r for r in everybody if not self._to_pause(r)} - set(incident.killed),
            Phase.RESCHEDULE: everybody - absent,
            Phase.REPLACE: everybody - (incident.new - incident.ready),
            Phase.REBUILD: incident.rebuilt,
            Phase.RESTORE: set(incident.restored),
            Phase.RESUME: incident.committed,
            Phase.DUMP: (
                everybody
                - (
                    {incident.dump.saver}
                    if incident.dump is not None and not incident.dump.saved
                    else set()
                )
            ),
        }
        return sorted(everybody - done.get(incident.phase, everybody))

    def _pausing(self) -> bool:
        """Whether PAUSE waits for the report of any rank."""
        return self._stragglers.any(self._job.ranks, self._to_pause)

    def _to_pause(self, number: int) -> bool:
        """Whether PAUSE waits for the report of this rank; for those that were killed it waits
        otherwise."""
        incident = self.incident
        assert incident is not None
        if (
            number in incident.reports
            or number in incident.killed
            or number in incident.new
            or self._job.topology.is_lost(number)
        ):
            return False
        # `dump` replaces and ends nobody: there are ranks without a process, or with one that
        # nothing can be expected of
        gone = not self._job.ranks[number].alive or number in incident.condemned
        return incident.strategy != "dump" or not gone

    def _decide(self, now: float) -> None:
        job, incident = self._job, self.incident
        assert incident is not None
        members = []
        for number, rank in job.ranks.items():
            new = number in incident.new or not rank.alive
            node = job.topology.node_of(number)
            position = rank.left if new else incident.reports.get(number)
            if position is not None and number in incident.odd:
                position = position.but(clean=None, stripes=frozenset())
            members.append(repair.Member(number, -1 if node is None else node, not new, position))
        if incident.strategy == "dump":
            self._dump(members, now)
            return
        plan = repair.plan(members, self.resumed)
        if isinstance(plan, repair.Refusal):
            self.climb(Move.REFUSED, plan.reason, now)
            return
        incident.plan, self.resumed = plan, plan.step
        job.note(f"repair: {plan.reason}")
        self._move(Move.PLANNED, now)

    # -- the dump ----------------------------------------------------------------------------------

    def _dump(self, members: list[repair.Member], now: float) -> None:
        incident = self.incident
        assert incident is not None
        begun = dump.begin(self._job, members, set(incident.reports) - set(incident.condemned))
        if isinstance(begun, repair.Refusal):
            self.climb(Move.REFUSED, begun.reason, now)
            return
        incident.dump = begun
        self._move(Move.SAVING, now)

    def saved(self, event: from_rank.StateSaved | from_agent.RecordsSaved, now: float) -> None:
        """A part of the dump is written, or cannot be."""
        incident = self.incident
        if (
            incident is None
            or incident.phase is not Phase.DUMP
            or incident.dump is None
            or event.pause != self._job.pause
        ):
            return
        if isinstance(event, from_agent.RecordsSaved):
            if event.why:
                self.climb(
                    Move.SPENT,
                    f"node {event.node} could not save its ranks' records: {event.why}",
                    now,
                )
                return
            incident.dump.waiting.discard(event.node)
        else:
            incident.dump.saved = True
        incident.dump.files += event.files
        dump.advance(self._job, incident.dump)

    def sealed(self, event: from_agent.Sealed, now: float) -> None:
        incident, job = self.incident, self._job
        if (
            incident is None
            or incident.phase is not Phase.DUMP
            or incident.dump is None
            or event.pause != job.pause
        ):
            return
        if event.why:
            self.climb(Move.SPENT, f"the dump could not be sealed: {event.why}", now)
            return
        step = incident.dump.step
        self._move(Move.SAVED, now)
        incident.tried.append(
            f"dump: done, the state at the start of step {step} is at {event.path}"
        )
        self._give_up(now, "")

    def _compare(self, now: float) -> None:
        job, incident = self._job, self.incident
        assert incident is not None and incident.plan is not None
        digests = Counter(incident.restored.values())
        if len(digests) > 1:
            detail = some(f"rank {r}: {d}" for r, d in sorted(incident.restored.items()))
            digest, votes = digests.most_common(1)[0]
            why = f"replicas differ at step {incident.plan.step} ({detail})"
            if incident.moving is None and 2 * votes > len(job.ranks):
                incident.odd = {r for r, d in incident.restored.items() if d != digest}
                if not incident.regiven and not incident.odd & set(incident.plan.keep):
                    # what they were given may be at fault, and now it comes from elsewhere
                    incident.regiven = True
                    self.fault(why, now)
                    return
                incident.condemned.update(
                    dict.fromkeys(incident.odd, "its restored state differs from most others'")
                )
            self.climb(Move.DIFFERENT, why, now)
            return
        self._move(Move.RESTORED, now)
        if incident.moving is not None:
            self.nodes.moved(incident)
            self._hold.end_move()  # before they are told to go on, or they would stop at once
        # from here on the replacements hold state like everybody else
        incident.new.clear()
        incident.ready.clear()
        for rank in job.ranks.values():
            rank.left, rank.finished = None, None
        job.say(to_rank.Resume(job.pause, job.generation, incident.plan.step))

    def _close(self, now: float) -> None:
        job, incident = self._job, self.incident
        assert incident is not None and incident.plan is not None
        self._move(Move.COMMITTED, now)
        phases = incident.timeline.durations(now)
        phases.pop(Phase.CLOSED.value, None)
        seconds = now - incident.began
        job.note(
            f"incident {incident.number} closed by {incident.strategy} after {seconds * 1e3:.0f}"
            f" ms; step {incident.plan.step} is committed on all ranks"
        )
        job.say(
            c.Closed(
                incident.number,
                incident.strategy,
                tuple(incident.faults),
                tuple(sorted(incident.replaced)),
                incident.plan.step,
                seconds,
                phases,
                (*incident.tried, f"{incident.strategy}: done"),
                incident.began,
            )
        )
        self.incident = None

    # -- the ladder --------------------------------------------------------------------------------

    def climb(self, move: Move, why: str, now: float) -> None:
        """The present strategy has failed: the next rung, or the end."""
        incident = self.incident
        assert incident is not None
        self._move(move, now)
        if incident.moving is not None:
            self.nodes.put_back(incident, why)
            self._hold.end_move()
        incident.failed.append(incident.strategy)
        incident.tried.append(f"{incident.strategy}: {why}")
        self._job.note(f"incident {incident.number}: {incident.strategy} failed: {why}")
        self._enter_pause(now, Move.CLIMBED)

    def _stop(self, rung: ladder.Rung, now: float) -> None:
        incident = self.incident
        assert incident is not None
        self._move(Move.STOPPED, now)
        passed = [s for s in rung.skipped if "it has failed in this incident" not in s]
        self._give_up(now, f" Passed over: {'; '.join(passed)}." if passed else "")

    def _give_up(self, now: float, skipped: str) -> None:
        """The paragraph that the user reads, and the end."""
        job, incident = self._job, self.incident
        assert incident is not None
        tried = "; ".join(incident.tried) or "nothing"
        reason = (
            f"incident {incident.number} could not be repaired. What failed:"
            f" {'; '.join(incident.faults[:6])}{' and more' if len(incident.faults) > 6 else ''}."
            f" When: {now - incident.began:.1f} s ago, pause {job.pause}, generation"
            f" {job.generation}. What was tried: {tried}.{skipped}"
        )
        settings = job.settings
        # a process would be started there
        unusable = any(rank.unusable for rank in job.ranks.values())
        if (
            not incident.leaving
            and job.retried < settings.retries
            and not job.topology.lost
            and not unusable
        ):
            job.retried += 1
            job.restart = f"{reason} This is time {job.retried} of {settings.retries}."
            return
        reason = f"The job ends: {reason}"
        job.say(to_agent.GiveUp(reason))
        job.end(False, reason)

    def _move(self, move: Move, now: float) -> None:
        incident, settings = self.incident, self._job.settings
        assert incident is not None
        incident.phase = after(incident.phase, move)
        incident.timeline.enter(incident.phase.value, now)
        limits = {
            Phase.PAUSE: settings.pause,
            Phase.REPLACE: settings.replace,
            Phase.REBUILD: settings.rebuild,
            Phase.RESTORE: settings.restore,
            Phase.RESUME: settings.resume,
            Phase.DUMP: settings.dump,
        }
        incident.deadline = now + limits.get(incident.phase, 0.0)

    # -- time --------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        incident, settings = self.incident, self._job.settings
        if incident is None or (due := self.due()) is None or now < due:
            return
        silent, phase = self.silent(), incident.phase
        undead = [r for r in silent if r in incident.killed]
        if phase is Phase.PAUSE and now < incident.deadline:
            incident.asked_again = True
            self._job.note(
                f"ranks [{some(r for r in silent if r not in incident.killed)}] have not paused;"
                " asked again"
            )
            self._job.say(to_rank.Pause(self._job.pause, "asked again"))
        elif phase is Phase.RESCHEDULE:
            self._not_taken(now)
        elif phase is Phase.DUMP:
            self.climb(Move.DEADLINE, f"the state was not saved within {settings.dump:.0f} s", now)
        elif phase is Phase.REPLACE:
            self.climb(
                Move.DEADLINE,
                f"the replacement of ranks [{some(silent)}] was not ready within"
                f" {settings.replace:.0f} s",
                now,
            )
        elif undead:
            self.climb(
                Move.SPENT,
                f"ranks [{some(undead)}] did not end within {settings.kill:.0f} s of being killed",
                now,
            )
        else:
            why = f"silent in {phase.value} for {now - incident.timeline.entered[-1][1]:.0f} s"
            condemned = dict.fromkeys(silent, why)
            self.fault(
                _listed(condemned),
                now,
                condemned=condemned,
                hung=frozenset(silent),
                move=Move.DEADLINE,
            )

    def _not_taken(self, now: float) -> None:
        """The time for lost nodes is up."""
        topology, settings = self._job.topology, self._job.settings
        if self.incident is not None and (moving := self.incident.moving) is not None:
            why = (
                f"standby {moving.heir[:8]} has not taken node {moving.node} over within"
                f" {settings.take_over:.0f} s"
            )
            self.climb(Move.DEADLINE, why, now)
            return
        waiting = [n for n in topology.lost if not topology.nodes[n].heir]
        if waiting:
            heard, everybody = topology.heard()
            why = (
                "no standby came for"
                if not topology.standbys
                else f"only {heard} of {everybody} agents are heard, no majority, for"
            )
            self.climb(
                Move.DEADLINE, f"{why} node {waiting[0]} within {settings.reschedule:.0f} s", now
            )
            return
        for number in topology.lost:
            heir = topology.nodes[number].heir
            self._job.say(
                to_agent.Fence(
                    heir,
                    number,
                    f"it has not taken node {number} over within {settings.take_over:.0f} s",
                )
            )
            self.lost(
                number,
                f"standby {heir[:8]} has not taken it over within {settings.take_over:.0f} s",
                now,
            )
            if self.incident is None or self.incident.phase is not Phase.RESCHEDULE:
                return


def _listed(why: Mapping[int, str]) -> str:
    return some((f"rank {r}: {text}" for r, text in sorted(why.items())), "; ")

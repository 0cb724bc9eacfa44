"""What happens at each event: joins topology, incident, ladder and repair. Nobody else decides.

Use: `commands = coordinator.step(event, now)`; carry the commands out in order. `deadline()` is the time at which a Tick is due.
`now` is in seconds on any clock that does not go backwards.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from taskd.core import commands as c
from taskd.core import events as e
from taskd.core import ladder, repair
from taskd.core.incident import Move, Phase, after
from taskd.core.topology import Topology

UNDER_WAY = "an incident was under way when the manager was lost"


@dataclass
class _Rank:
    incarnation: int = 0
    joined: bool = False
    finished: int | None = None  # its loop is over before this step
    ended: bool = False
    alive: bool = True
    left: e.Position | None = None  # what its last process left behind
    raised: tuple[int, str] | None = None  # step and text of the exception its process is ending with


@dataclass
class _Incident:
    number: int
    began: float
    strategy: str
    phase: Phase
    deadline: float
    faults: list[str]
    timeline: e.Timeline = field(default_factory=e.Timeline)
    rounds: int = 0
    asked_again: bool = False
    ended_silent: bool = False  # the ranks that the present phase waits for have been killed
    replaced: dict[int, int] = field(default_factory=dict)  # rank -> replacements started in this incident
    new: set[int] = field(default_factory=set)  # ranks whose process is a replacement without state so far
    reports: dict[int, e.Position] = field(default_factory=dict)
    ready: set[int] = field(default_factory=set)
    rebuilt: set[int] = field(default_factory=set)
    restored: dict[int, str] = field(default_factory=dict)
    committed: set[int] = field(default_factory=set)
    plan: repair.Plan | None = None
    failed: list[str] = field(default_factory=list)  # strategies
    tried: list[str] = field(default_factory=list)  # in words


class Coordinator:
    """The state of one job. See the module docstring."""

    def __init__(self, settings: e.Settings) -> None:
        self.settings = settings
        self.topology = Topology(settings.nodes * settings.ranks_per_node)
        self.ranks = {r: _Rank() for r in range(self.topology.world_size)}
        self.generation = 0
        self.pause = 0
        self.protected = False  # every rank is in its loop, under our communicators
        self.forming: float | None = None  # deadline for the last rank's protect()
        self.building = False  # generation 1 is being made
        self.gathering: float | None = None  # deadline for the last agent of a job that an earlier manager has led
        self.released = -1  # no step before this one will be repeated
        self.over = False
        self.incident: _Incident | None = None
        self.incidents = 0
        self.resumed: int | None = None  # step of the last repair's plan
        self.bugs: dict[int, tuple[int, str]] = {}  # rank -> the exception its last failed process ended with
        self._rebuilt: set[int] = set()  # ranks that have joined generation 1
        self._waiting: set[int] = set()  # ranks that are known to wait for orders while agents are gathered
        self._out: list[c.Command] = []
        self._handlers: dict[type, Callable[..., None]] = {
            e.AgentJoined: self._agent_joined,
            e.AgentLeft: self._agent_left,
            e.AgentLost: self._agent_lost,
            e.RankJoined: self._rank_joined,
            e.RankDied: self._rank_died,
            e.RankRaised: self._rank_raised,
            e.CollectiveFailed: self._collective_failed,
            e.RankPaused: self._rank_paused,
            e.RankReady: self._rank_ready,
            e.RankRebuilt: self._rank_rebuilt,
            e.RankRestored: self._rank_restored,
            e.RankFailed: self._rank_failed,
            e.StepCommitted: self._step_committed,
            e.RankFinished: self._rank_finished,
            e.RankEnded: self._rank_ended,
            e.RankBusy: self._rank_busy,
            e.Tick: self._tick,
        }

    # -- the shell's side ----------------------------------------------------------------------------------------------

    def step(self, event: e.Event, now: float) -> list[c.Command]:
        """Take one event; return what is to be done, in order. Events that are late or repeated return nothing."""
        self._out = []
        if not self.over:
            rank = getattr(event, "rank", None)
            if rank is not None and rank not in self.ranks:
                self._note(f"{type(event).__name__} of rank {rank} ignored: this job has ranks 0 to {len(self.ranks) - 1}")
            elif rank is None or getattr(event, "incarnation", 0) == self.ranks[rank].incarnation:
                self._handlers[type(event)](event, now)
        return self._out

    def deadline(self) -> float | None:
        """When the next Tick is due; None: nothing is being waited for."""
        due = [t for t in (self.forming, self.gathering, self._incident_due()) if t is not None and not self.over]
        return min(due, default=None)

    def _incident_due(self) -> float | None:
        incident = self.incident
        if incident is None:
            return None
        if incident.phase is Phase.PAUSE and not incident.asked_again and not incident.ended_silent:
            return min(incident.deadline, incident.timeline.entered[-1][1] + self.settings.pause_again)
        return incident.deadline

    # -- agents --------------------------------------------------------------------------------------------------------

    def _agent_joined(self, event: e.AgentJoined, now: float) -> None:
        known = self.topology.nodes.get(event.node)
        refusal = self.topology.join(event.node, event.ranks, event.store, event.epoch)
        if refusal:
            self._note(refusal)
            return
        if known is None or event.epoch != known.epoch:
            self._start_anew(event, now)
        if self.topology.complete and not self.protected and event.generation:
            self._take_over(now)

    def _start_anew(self, event: e.AgentJoined, now: float) -> None:
        """A node's processes are new to us: first contact, a whole restart, or we are a manager that was restarted."""
        incarnations = event.incarnations or (0,) * len(event.ranks)
        left = dict(zip(event.dead, event.left, strict=False))
        for rank, incarnation in zip(event.ranks, incarnations, strict=True):
            self.ranks[rank] = _Rank(incarnation, rank in event.joined, alive=rank not in event.dead, left=left.get(rank))
        self._waiting = self._waiting - set(event.ranks) | set(event.waiting)
        if event.generation == 0:
            # the scripts run from their beginning: whatever was protected before is gone
            self.protected, self.building, self.released, self.incident, self.resumed = False, False, -1, None, None
            # ranks that have joined elsewhere still wait, and not for ever
            self.forming = now + self.settings.form if any(r.joined for r in self.ranks.values()) else None
            self.gathering = None
        elif not self.protected and self.gathering is None:
            self.gathering = now + self.settings.form
        self.generation = max(self.generation, event.generation)
        self.pause = max(self.pause, event.pause)

    def _take_over(self, now: float) -> None:
        """All agents have told a new manager about a job that is under way."""
        if not all(r.joined for r in self.ranks.values()):
            return
        self.protected, self.gathering = True, None
        dead = {r for r, s in self.ranks.items() if not s.alive}
        if dead or self._waiting:
            self._open(dead, [f"rank {r}: died while there was no manager" for r in sorted(dead)] or [UNDER_WAY], now)
        else:
            self._note(f"took over a job of {len(self.ranks)} ranks at generation {self.generation}")

    def _agent_left(self, event: e.AgentLeft, now: float) -> None:
        node = self.topology.nodes.get(event.node)
        if node is None:
            return
        node.ended = event.ok
        if not event.ok:
            self._end(False, f"node {event.node} ended with an error{': ' + event.why if event.why else ''}")
        elif self.topology.complete and all(n.ended for n in self.topology.nodes.values()):
            self._end(True, "every node ended well")

    def _agent_lost(self, event: e.AgentLost, now: float) -> None:
        node = self.topology.nodes.get(event.node)
        if node is None or node.lost or node.ended is not None:
            return
        node.lost = True
        if self.protected:
            for rank in node.ranks:
                self.ranks[rank].alive = False
            self._fault(set(node.ranks), f"node {event.node} (ranks {node.ranks[0]}-{node.ranks[-1]}): {event.why}", now)
        else:
            self._end(False, f"node {event.node} is lost: {event.why}")

    # -- forming ---------------------------------------------------------------------------------------------------------

    def _rank_joined(self, event: e.RankJoined, now: float) -> None:
        rank = self.ranks[event.rank]
        rank.joined = True
        if self.protected or self.building:
            return
        if all(r.joined for r in self.ranks.values()) and self.topology.complete:
            self.building, self.forming = True, now + self.settings.rebuild
            self._rebuilt = set()
            self.generation += 1
            self._rebuild()
        elif self.forming is None:
            self.forming = now + self.settings.form

    def _formed(self) -> None:
        self.protected, self.building, self.forming = True, False, None
        self._note(f"all {len(self.ranks)} ranks are protected; ladder: {', '.join(self.settings.ladder)}")
        self._out.append(c.Resume(self.pause, self.generation, 0))

    # -- ranks -----------------------------------------------------------------------------------------------------------

    def _rank_died(self, event: e.RankDied, now: float) -> None:
        rank = self.ranks[event.rank]
        if not rank.alive:
            return
        rank.alive, rank.left = False, event.position or rank.left
        if not self.protected:
            # the launcher watches its processes itself; what was being built is void
            if self.building or self.forming is not None:
                self._restart_all(f"rank {event.rank} {event.cause} before every rank was protected")
            return
        cause = f"rank {event.rank}: {event.cause}"
        if rank.raised is not None:
            cause += f" after {rank.raised[1]} in step {rank.raised[0]}"
        again = rank.raised is not None and self.bugs.get(event.rank) == rank.raised
        if rank.raised is not None:
            self.bugs[event.rank] = rank.raised
        self._fault({event.rank}, cause, now)
        incident = self.incident
        if again and incident is not None and not self.over:
            self._climb(Move.SPENT, "the same exception at the same step and rank again: a defect of the script, not a fault", now)

    def _rank_raised(self, event: e.RankRaised, now: float) -> None:
        self.ranks[event.rank].raised = (event.step, event.text)

    def _collective_failed(self, event: e.CollectiveFailed, now: float) -> None:
        if not self.protected:
            self._waiting.add(event.rank)
            return
        text = f"rank {event.rank}: a collective failed in step {event.step}: {event.text}"
        incident = self.incident
        if incident is None:
            self._open(set(), [text], now)
        elif incident.phase is Phase.RESUME:
            if incident.strategy == "retry":
                self._climb(Move.SPENT, f"the step failed again: {text}", now)
            else:
                self._join(set(), text, now)

    def _rank_paused(self, event: e.RankPaused, now: float) -> None:
        incident = self.incident
        if not self.protected:
            self._waiting.add(event.rank)
        elif self.incidents == 0 and 0 < event.pause == self.pause:
            self._open(set(), [UNDER_WAY], now)  # the last word of the manager before us has just reached the rank
        if incident is None or event.pause != self.pause or incident.phase is not Phase.PAUSE:
            return
        if event.rank not in incident.new:
            incident.reports[event.rank] = event.position
        self._advance(now)

    def _rank_ready(self, event: e.RankReady, now: float) -> None:
        incident = self.incident
        if incident is None or event.rank not in incident.new:
            return
        incident.ready.add(event.rank)
        self._advance(now)

    def _rank_rebuilt(self, event: e.RankRebuilt, now: float) -> None:
        if event.generation != self.generation:
            return
        if self.building:
            self._rebuilt.add(event.rank)
            if len(self._rebuilt) == len(self.ranks):
                self._formed()
        elif self.incident is not None and self.incident.phase is Phase.REBUILD:
            self.incident.rebuilt.add(event.rank)
            self._advance(now)

    def _rank_restored(self, event: e.RankRestored, now: float) -> None:
        incident = self.incident
        if incident is None or incident.phase is not Phase.RESTORE or event.generation != self.generation:
            return
        incident.restored[event.rank] = event.digest
        self._advance(now)

    def _rank_failed(self, event: e.RankFailed, now: float) -> None:
        if event.generation != self.generation:
            return
        if self.building:
            self._restart_all(f"rank {event.rank} could not join generation {self.generation}: {event.reason}")
            return
        if self.incident is None or self.incident.phase not in (Phase.REBUILD, Phase.RESTORE, Phase.RESUME):
            return
        self._join(set(), f"rank {event.rank} in {self.incident.phase.value}: {event.reason}", now)

    def _step_committed(self, event: e.StepCommitted, now: float) -> None:
        incident = self.incident
        if incident is None or incident.phase is not Phase.RESUME or event.generation != self.generation:
            return
        incident.committed.add(event.rank)
        self._advance(now)

    def _rank_finished(self, event: e.RankFinished, now: float) -> None:
        if event.step <= self.released:
            self._out.append(c.Release(self.released))  # a replacement, on its way to where the others have been
            return
        self.ranks[event.rank].finished = event.step
        if self.incident is not None and self.incident.phase is Phase.RESUME:
            self.incident.committed.add(event.rank)
            self._advance(now)
        self._release_if_finished()

    def _release_if_finished(self) -> None:
        if not self.protected or self.incident is not None or any(r.finished is None for r in self.ranks.values()):
            return
        steps = {r.finished for r in self.ranks.values() if r.finished is not None}
        self.released = max(steps)
        for rank in self.ranks.values():
            rank.finished = None
        self._out.append(c.Release(self.released))

    def _rank_ended(self, event: e.RankEnded, now: float) -> None:
        self.ranks[event.rank].ended = True
        if self.incident is not None and self.incident.phase is Phase.RESUME:
            self.incident.committed.add(event.rank)
            self._advance(now)
        elif self.incident is not None:
            self._climb(Move.SPENT, f"rank {event.rank} has ended and cannot take part in a repair any more", now)

    def _rank_busy(self, event: e.RankBusy, now: float) -> None:
        incident = self.incident
        if incident is None or incident.phase is not Phase.PAUSE or event.pause != self.pause or incident.ended_silent:
            return
        if event.rank in self._silent(incident):
            incident.deadline = max(incident.deadline, now + event.allowance)

    # -- the incident ------------------------------------------------------------------------------------------------------

    def _fault(self, ranks: set[int], text: str, now: float) -> None:
        """Ranks are without a process: a new incident, or one more fault of the present one."""
        if self.incident is None:
            self._open(ranks, [text], now)
        else:
            self._join(ranks, text, now)

    def _open(self, dead: set[int], faults: list[str], now: float) -> None:
        self.incidents += 1
        rung = ladder.choose(self.settings.ladder, self._damage())
        self.incident = _Incident(self.incidents, now, rung.strategy, Phase.DETECT, now + self.settings.confirm, list(faults))
        self.incident.timeline.enter("DETECT", now)
        self._note(f"incident {self.incidents}: {'; '.join(faults)}")
        if dead or self._damage().dead:
            self._enter_pause(rung, now)

    def _join(self, dead: set[int], text: str, now: float) -> None:
        incident = self.incident
        assert incident is not None
        incident.faults.append(text)
        self._note(f"incident {incident.number}, {incident.phase.value}: {text}")
        spent = [r for r in dead if incident.replaced.get(r, 0) >= self.settings.replacements]
        if spent:
            self._climb(Move.SPENT, f"rank {min(spent)} was replaced {incident.replaced[min(spent)]} times and died again", now)
        elif incident.rounds >= self.settings.rounds + len(incident.replaced):  # many deaths at once are told one by one
            self._climb(Move.SPENT, f"{incident.rounds} rounds without a committed step", now)
        else:
            self._enter_pause(ladder.choose(self.settings.ladder, self._damage(), incident.failed), now)

    def _enter_pause(self, rung: ladder.Rung, now: float) -> None:
        """The next round, under `rung`: everybody pauses, who has no process gets one."""
        incident = self.incident
        assert incident is not None
        if rung.strategy == "exit":
            if incident.phase is not Phase.FAILED:  # no rung fits the damage any more
                if incident.rounds:
                    incident.tried.append(f"{incident.strategy}: broken off in {incident.phase.value} by the last fault")
                incident.phase = Phase.FAILED
            self._stop(rung, now)
            return
        told = Move.FAULT if incident.phase is not Phase.DETECT or self._damage().dead else Move.DEADLINE
        incident.phase = after(incident.phase, Move.CLIMBED if incident.phase is Phase.FAILED else told)
        if rung.strategy != incident.strategy or incident.rounds == 0:
            self._note(f"strategy {rung.strategy}: {rung.reason}" + (f" (passed over: {'; '.join(rung.skipped)})" if rung.skipped else ""))
        incident.strategy = rung.strategy
        incident.rounds += 1
        incident.asked_again = incident.ended_silent = False
        incident.timeline.enter("PAUSE", now)
        incident.deadline = now + self.settings.pause
        incident.reports, incident.rebuilt, incident.restored, incident.committed = {}, set(), {}, set()
        incident.plan = None
        self.pause += 1
        self._out.append(c.Pause(self.pause, incident.faults[-1]))
        for number, rank in self.ranks.items():
            if not rank.alive:
                self._replace(number, incident)
        self._advance(now)

    def _replace(self, number: int, incident: _Incident) -> None:
        rank = self.ranks[number]
        rank.incarnation += 1
        rank.alive, rank.finished, rank.raised = True, None, None
        incident.replaced[number] = incident.replaced.get(number, 0) + 1
        incident.new.add(number)
        incident.ready.discard(number)
        self._out.append(c.Replace(number, rank.incarnation, incident.faults[-1]))

    def _advance(self, now: float) -> None:
        """Leave every phase whose condition holds."""
        incident = self.incident
        while incident is not None and incident.phase not in (Phase.CLOSED, Phase.ENDED, Phase.FAILED):
            before = incident.phase
            if before is Phase.PAUSE and not self._silent(incident):
                self._move(Move.PAUSED, now)
                self._decide(now)
            elif before is Phase.REPLACE and incident.new <= incident.ready:
                self._move(Move.READY, now)
                self.generation += 1
                self._rebuild()
            elif before is Phase.REBUILD and len(incident.rebuilt) == len(self.ranks):
                self._move(Move.REBUILT, now)
                assert incident.plan is not None
                self._out.append(c.Restore(self.pause, self.generation, incident.plan))
            elif before is Phase.RESTORE and len(incident.restored) == len(self.ranks):
                self._compare(now)
            elif before is Phase.RESUME and len(incident.committed) == len(self.ranks):
                self._close(now)
            if self.incident is None or incident.phase is before:
                return

    def _silent(self, incident: _Incident) -> list[int]:
        """Ranks that the present phase is waiting for."""
        done: dict[Phase, set[int]] = {
            Phase.PAUSE: set(incident.reports) | incident.new,
            Phase.REPLACE: set(self.ranks) - (incident.new - incident.ready),
            Phase.REBUILD: incident.rebuilt,
            Phase.RESTORE: set(incident.restored),
            Phase.RESUME: incident.committed,
        }
        return sorted(set(self.ranks) - done.get(incident.phase, set(self.ranks)))

    def _decide(self, now: float) -> None:
        incident = self.incident
        assert incident is not None
        members = []
        for number, rank in self.ranks.items():
            new = number in incident.new
            node = self.topology.node_of(number)
            position = rank.left if new else incident.reports.get(number)
            members.append(repair.Member(number, -1 if node is None else node, not new, position))
        plan = repair.plan(members, self.resumed)
        if isinstance(plan, repair.Refusal):
            self._climb(Move.REFUSED, plan.reason, now)
            return
        incident.plan, self.resumed = plan, plan.step
        self._note(f"repair: {plan.reason}")
        self._move(Move.PLANNED, now)

    def _rebuild(self) -> None:
        host = self.topology.store_host()
        store = self.topology.nodes[host].store if host is not None else ("", 0)
        self._out.append(c.Rebuild(self.pause, self.generation, store))

    def _compare(self, now: float) -> None:
        incident = self.incident
        assert incident is not None and incident.plan is not None
        if len(set(incident.restored.values())) > 1:
            detail = ", ".join(f"rank {r}: {d}" for r, d in sorted(incident.restored.items()))
            self._climb(Move.DIFFERENT, f"replicas differ at step {incident.plan.step} ({detail})", now)
            return
        self._move(Move.RESTORED, now)
        # from here on the replacements hold state like everybody else
        incident.new.clear()
        incident.ready.clear()
        for rank in self.ranks.values():
            rank.left, rank.finished = None, None
        self._out.append(c.Resume(self.pause, self.generation, incident.plan.step))

    def _close(self, now: float) -> None:
        incident = self.incident
        assert incident is not None and incident.plan is not None
        self._move(Move.COMMITTED, now)
        phases = incident.timeline.durations(now)
        phases.pop(Phase.CLOSED.value, None)
        seconds = now - incident.began
        self._note(
            f"incident {incident.number} closed by {incident.strategy} after {seconds * 1e3:.0f} ms; "
            f"step {incident.plan.step} is committed on all ranks"
        )
        tried = (*incident.tried, f"{incident.strategy}: done")
        replaced = tuple(sorted(incident.replaced))
        self._out.append(
            c.Closed(
                incident.number,
                incident.strategy,
                tuple(incident.faults),
                replaced,
                incident.plan.step,
                seconds,
                phases,
                tried,
                incident.began,
            )
        )
        self.incident = None
        self._release_if_finished()

    def _climb(self, move: Move, why: str, now: float) -> None:
        """The present strategy has failed: the next rung, or the end."""
        incident = self.incident
        assert incident is not None
        if incident.phase is Phase.FAILED:
            return
        self._move(move, now)
        incident.failed.append(incident.strategy)
        incident.tried.append(f"{incident.strategy}: {why}")
        self._note(f"incident {incident.number}: {incident.strategy} failed: {why}")
        self._enter_pause(ladder.choose(self.settings.ladder, self._damage(), incident.failed), now)

    def _stop(self, rung: ladder.Rung, now: float) -> None:
        incident = self.incident
        assert incident is not None
        self._move(Move.STOPPED, now)
        tried = "; ".join(incident.tried) or "nothing"
        skipped = (
            f" Passed over: {'; '.join(s for s in rung.skipped if 'has failed' not in s)}."
            if any("has failed" not in s for s in rung.skipped)
            else ""
        )
        reason = (
            f"The job ends: incident {incident.number} could not be repaired. What failed: {'; '.join(incident.faults[:6])}"
            f"{' and more' if len(incident.faults) > 6 else ''}. When: {now - incident.began:.1f} s ago, "
            f"pause {self.pause}, generation {self.generation}. What was tried: {tried}.{skipped}"
        )
        self._out.append(c.GiveUp(reason))
        self._end(False, reason)

    def _move(self, move: Move, now: float) -> None:
        incident = self.incident
        assert incident is not None
        incident.phase = after(incident.phase, move)
        incident.ended_silent = False
        incident.timeline.enter(incident.phase.value, now)
        limits = {
            Phase.PAUSE: self.settings.pause,
            Phase.REPLACE: self.settings.replace,
            Phase.REBUILD: self.settings.rebuild,
            Phase.RESTORE: self.settings.restore,
            Phase.RESUME: self.settings.resume,
        }
        incident.deadline = now + limits.get(incident.phase, 0.0)

    # -- time --------------------------------------------------------------------------------------------------------------

    def _tick(self, event: e.Tick, now: float) -> None:
        if self.forming is not None and now >= self.forming:
            missing = [r for r, s in self.ranks.items() if not (r in self._rebuilt if self.building else s.joined)]
            what = f"join generation {self.generation}" if self.building else "call protect()"
            limit = self.settings.rebuild if self.building else self.settings.form
            self._restart_all(f"ranks {missing} did not {what} within {limit:.0f} s")
            return
        if self.gathering is not None and now >= self.gathering:
            missing = [r for r, s in self.ranks.items() if self.topology.node_of(r) is None or not s.joined]
            self._restart_all(f"a new manager has heard nothing of ranks {missing} within {self.settings.form:.0f} s")
            return
        incident = self.incident
        if incident is None or (due := self._incident_due()) is None or now < due:
            return
        if incident.phase is Phase.PAUSE and not incident.asked_again and now < incident.deadline:
            incident.asked_again = True
            self._note(f"ranks {self._silent(incident)} have not paused; asked again")
            self._out.append(c.Pause(self.pause, "asked again"))
        elif incident.phase is Phase.DETECT:
            self._enter_pause(ladder.choose(self.settings.ladder, self._damage(), incident.failed), now)
        elif incident.phase is Phase.REPLACE:
            self._climb(
                Move.DEADLINE, f"the replacement of ranks {self._silent(incident)} was not ready within {self.settings.replace:.0f} s", now
            )
        else:
            self._end_silent(incident, now)

    def _end_silent(self, incident: _Incident, now: float) -> None:
        """End the ranks that the phase waits for: their deaths are faults of the next round, and tell what they left behind."""
        silent, phase = self._silent(incident), incident.phase
        if incident.ended_silent:
            self._climb(Move.SPENT, f"ranks {silent} did not end within {self.settings.kill:.0f} s of being killed in {phase.value}", now)
            return
        incident.ended_silent = True
        incident.phase = after(phase, Move.DEADLINE)
        incident.deadline = now + self.settings.kill
        self._note(f"ranks {silent} are silent in {phase.value} past its deadline: ended")
        for number in silent:
            self._out.append(c.Kill(number, self.ranks[number].incarnation, f"silent in {phase.value} past its deadline"))

    # -- small ------------------------------------------------------------------------------------------------------------

    def _damage(self) -> ladder.Damage:
        dead = {r for r, s in self.ranks.items() if not s.alive}
        if self.incident is not None:
            dead |= self.incident.new
        lost = {i for i, n in self.topology.nodes.items() if n.lost}
        ended = {r for r, s in self.ranks.items() if s.ended}
        return ladder.Damage(frozenset(dead), frozenset(lost), self.protected, frozenset(ended))

    def _restart_all(self, reason: str) -> None:
        self.protected, self.building, self.forming, self.gathering, self.incident = False, False, None, None, None
        for rank in self.ranks.values():
            rank.joined = False
        self._note(f"all ranks are restarted: {reason}")
        self._out.append(c.RestartAll(tuple(sorted((i, n.epoch) for i, n in self.topology.nodes.items())), reason))

    def _end(self, ok: bool, reason: str) -> None:
        self.over = True
        self._out.append(c.End(ok, reason))

    def _note(self, text: str) -> None:
        self._out.append(c.Note(text))

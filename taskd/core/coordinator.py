"""What happens at each event: the one entrance to `core`. Nobody else decides.

Use: `commands = coordinator.step(event, now)`; carry the commands out in order. `deadline()` is the
time at which a Tick is due. `now` is in seconds on any clock that does not go backwards. Here the
job is formed, agents come and go, and events are handed on: to `faults` what has gone wrong, to
`recovery` what ranks say in an incident, to `hold` a pause on request, to `watch` ranks that make
no progress, to `switch` nodes that are sub-healthy.
"""

from __future__ import annotations

from collections.abc import Callable

from taskd.core import commands as c
from taskd.core import events as e
from taskd.core.faults import Faults
from taskd.core.hold import Hold
from taskd.core.incident import Move, Phase
from taskd.core.levels import NAMED, TABLE, Asks
from taskd.core.listing import some
from taskd.core.recovery import Recovery
from taskd.core.settings import Settings
from taskd.core.state import JobState, RankState
from taskd.core.stragglers import Stragglers
from taskd.core.switch import Switch
from taskd.core.watch import Watch
from taskd.messages import from_agent, from_operator, from_rank, to_agent, to_operator, to_rank
from taskd.messages.from_rank import FAULTS

OF_OPERATORS = (
    from_operator.HoldRequested
    | from_operator.ContinueRequested
    | from_operator.RecoverySwitched
    | from_operator.NodeSubHealthy
)
UNDER_WAY = "an incident was under way when the manager was lost"


class Coordinator:
    """The decisions about one job. See the module docstring."""

    def __init__(self, settings: Settings) -> None:
        self.job = JobState(settings)
        self.hold = Hold(self.job)
        self.recovery = Recovery(self.job, self.hold)
        self.faults = Faults(self.job, self.recovery)
        self.switch = Switch(self.job, self.recovery, self.hold)
        self.watch = Watch(self.job, self.recovery, self.faults)
        self.forming: float | None = None  # deadline for the last rank's protect()
        self.building = False  # generation 1 is being made
        # deadline for the last agent of a job that an earlier manager has led
        self.gathering: float | None = None
        self._to_join = Stragglers()
        self._rebuilt: set[int] = set()  # ranks that have joined generation 1
        # node -> the one that keeps its records, as agents have told a new manager
        self._keeps: dict[int, int] = {}
        # replacements that an earlier manager has ordered, and that have no state yet
        self._new: set[int] = set()
        self._ready: set[int] = set()
        # ranks that are known to wait for orders while agents are gathered
        self._waiting: set[int] = set()
        self._handlers: dict[type, Callable[..., None]] = {
            from_agent.AgentJoined: self._agent_joined,
            from_agent.AgentLeft: self._agent_left,
            e.AgentLost: self._agent_lost,
            from_agent.StandbyJoined: self._standby_joined,
            e.StandbyLost: self._standby_lost,
            from_agent.NodeTaken: self._node_taken,
            from_operator.NodeSubHealthy: lambda event, now: self.switch.reported(event, now),
            e.DeviceLevel: self._device_level,
            from_operator.RecoverySwitched: self._switch_recovery,
            from_agent.NodePrepared: lambda event, now: self.switch.prepared(event, now),
            from_agent.PreparationFailed: lambda event, now: self.switch.failed(event, now),
            e.FormerLost: lambda event, now: self.recovery.former_lost(event),
            from_rank.RankJoined: self._rank_joined,
            from_agent.RankDied: self._rank_died,
            from_rank.RankRaised: self._rank_raised,
            from_rank.CollectiveFailed: self._collective_failed,
            from_rank.RankFaulted: self._rank_faulted,
            from_agent.RankStalled: lambda event, now: self.watch.stalled(event, now),
            from_agent.RankPresent: lambda event, now: self.watch.present(event, now),
            from_rank.RankPaused: self._rank_paused,
            from_rank.RankReady: lambda event, now: self.recovery.ready(event.rank, now),
            from_rank.RankRebuilt: self._rank_rebuilt,
            from_rank.RankRestored: lambda event, now: self.recovery.restored(event, now),
            from_rank.RankFailed: self._rank_failed,
            from_rank.StateSaved: lambda event, now: self.recovery.saved(event, now),
            from_agent.RecordsSaved: lambda event, now: self.recovery.saved(event, now),
            from_agent.Sealed: lambda event, now: self.recovery.sealed(event, now),
            from_rank.StepCommitted: self._step_committed,
            from_rank.RankFinished: self._rank_finished,
            from_agent.RankEnded: self._rank_ended,
            from_agent.RankBusy: lambda event, now: self.recovery.busy(event, now),
            from_operator.HoldRequested: self._hold,
            from_operator.ContinueRequested: self._continue,
            from_agent.StepsBegun: lambda event, now: self.hold.begun(event),
            from_rank.RankHeld: self._rank_held,
            from_rank.RankPassed: lambda event, now: self.hold.passed(event),
            e.Tick: self._tick,
        }

    # -- the shell's side --------------------------------------------------------------------------

    def step(self, event: e.Event, now: float) -> list[c.Command]:
        """Take one event; return what is to be done, in order. Events that are late or repeated
        return nothing."""
        job = self.job
        job.out = []
        rank = getattr(event, "rank", None)
        if job.over:
            if isinstance(event, OF_OPERATORS | e.DeviceLevel) and event.request:
                job.say(to_operator.Answer(event.request, False, "the job is over"))
        elif rank is not None and rank not in job.ranks:
            job.note(
                f"{type(event).__name__} of rank {rank} ignored: this job has ranks 0 to"
                f" {len(job.ranks) - 1}"
            )
        elif rank is None or self._present(rank, event):
            pause, incident = job.pause, self.recovery.incident
            self._handlers[type(event)](event, now)
            if job.restart:
                self._restart_all(job.restart)
            if not job.over:
                self.switch.look(now)
            if job.over:
                said, job.out = job.out, []
                self.hold.drop("the job is over")
                self.switch.end()
                job.out += said  # the answers first: the manager may leave then
            elif job.pause > pause and self.recovery.incident is not None:
                self.watch.stop()
                self.hold.again()
            elif incident is not None and self.recovery.incident is None:
                self.watch.stop()
                self._look(now)
        return job.out

    def _present(self, number: int, event: e.Event) -> bool:
        """Whether an event about a rank is about what it is now. A device outlives the processes on
        it."""
        incarnation = self.job.ranks[number].incarnation
        return getattr(
            event, "incarnation", incarnation
        ) == incarnation and not self.job.topology.is_lost(number)

    def _look(self, now: float) -> None:
        """Ranks have come to where they wait for the others."""
        job = self.job
        if self.recovery.incident is None:
            self.hold.look()
            if not self.hold.standing:  # ranks at the end of their loop are held there
                missed = job.quit_before_the_end()
                if missed:
                    text = (
                        "the others have come to the end of their loop, and wait for ranks"
                        f" [{some(missed)}]"
                    )
                    self.recovery.fault(text, now)
                else:
                    job.release_if_finished()

    def deadline(self) -> float | None:
        """When the next Tick is due; None: nothing is being waited for."""
        if self.job.over:
            return None
        due = (self.forming, self.gathering, self.recovery.due(), self.watch.due, self.switch.due)
        return min((t for t in due if t is not None), default=None)

    # -- agents ------------------------------------------------------------------------------------

    def _agent_joined(self, event: from_agent.AgentJoined, now: float) -> None:
        job = self.job
        known = job.topology.nodes.get(event.node)
        # nobody that we know of has a lost node without an agent: the manager before us may have
        # given it to this one
        unknown = known is not None and known.lost and not known.agent
        if known is not None and (
            known.heir or (job.protected and known.agent != event.agent and not unknown)
        ):
            job.say(
                to_agent.Fence(event.agent, event.node, f"node {event.node} has another agent now")
            )
            return
        refusal = job.topology.join(
            event.node, event.ranks, event.store, event.epoch, event.agent, event.records
        )
        if refusal:
            job.note(refusal)
            return
        if known is not None and known.lost and (unknown or event.epoch == known.epoch):
            job.topology.moved = job.topology.moved or event.epoch != known.epoch
            self._came_back(event, now)
        elif known is None or event.epoch != known.epoch:
            self._start_anew(event, now)
        node = job.topology.nodes[event.node]
        if event.keeper >= 0:
            node.keeper, node.told = event.keeper, True
        self._keeps |= dict.fromkeys(event.keeps, event.node)
        if event.generation and not job.protected and job.topology.complete:
            self._take_over(now)

    def _start_anew(self, event: from_agent.AgentJoined, now: float) -> None:
        """A node's processes are new to us: first contact, a whole restart, or we are a manager
        that was restarted."""
        job = self.job
        incarnations = event.incarnations or (0,) * len(event.ranks)
        left = dict(zip((*event.dead, *event.new), event.left, strict=False))
        self._new = self._new - set(event.ranks) | set(event.new)
        self._ready = self._ready - set(event.ranks) | set(event.ready)
        for rank, incarnation in zip(event.ranks, incarnations, strict=True):
            job.ranks[rank] = RankState(
                incarnation, rank in event.joined, alive=rank not in event.dead, left=left.get(rank)
            )
        self._waiting = self._waiting - set(event.ranks) | set(event.waiting)
        if event.generation == 0:
            # the scripts run from their beginning: whatever was protected before is gone
            job.protected, job.released, self.building = False, -1, False
            self._drop("the processes of a node were started anew")
            # ranks that have joined elsewhere still wait, and not forever
            self.forming = (
                now + job.settings.form if any(r.joined for r in job.ranks.values()) else None
            )
            self.gathering = None
        elif not job.protected and self.gathering is None:
            self.gathering = now + (
                job.settings.gather if "recover" in job.settings.ladder else job.settings.form
            )
        job.generation = max(job.generation, event.generation)
        job.pause = max(job.pause, event.pause)
        job.released = max(job.released, event.released) if event.generation else job.released

    def _take_over(self, now: float) -> None:
        """All agents have told a new manager about a job that is under way."""
        job = self.job
        if self._to_join.any(job.ranks, lambda r: not job.ranks[r].joined):
            return
        job.protected, self.gathering = True, None
        job.topology.moved = len({n.epoch for n in job.topology.nodes.values()}) > 1
        self.hold.complete()
        self.recovery.nodes.keep_records()
        dead = sorted(r for r, s in job.ranks.items() if not s.alive)
        if dead or self._waiting or self._new:
            self._join_with_new(
                "; ".join(f"rank {r}: died while there was no manager" for r in dead) or UNDER_WAY,
                now,
            )
            self.recovery.next_round(now, frozenset(dead))
        else:
            job.note(f"took over a job of {len(job.ranks)} ranks at generation {job.generation}")

    def _join_with_new(self, text: str, now: float) -> None:
        """An incident in which the replacements that an earlier manager has ordered are
        replacements."""
        incident = self.recovery.join(text, now)
        incident.new |= self._new
        incident.ready |= self._ready

    def _came_back(self, event: from_agent.AgentJoined, now: float) -> None:
        """A node that was taken for lost, before anybody had its place: its ranks are paused like
        all others. Those that the manager before us has ordered are replacements still."""
        incarnations = event.incarnations or (0,) * len(event.ranks)
        left = dict(zip((*event.dead, *event.new), event.left, strict=False))
        for number, incarnation in zip(event.ranks, incarnations, strict=True):
            rank = self.job.ranks[number]
            rank.incarnation, rank.alive, rank.left = (
                incarnation,
                number not in event.dead,
                left.get(number),
            )
        self.hold.remind()
        dead = "".join(f"; rank {r}: died while its node was out of reach" for r in event.dead)
        incident = self.recovery.join(f"node {event.node} is heard again{dead}", now)
        incident.new |= set(event.new)
        incident.ready |= set(event.ready)
        self.recovery.next_round(now, frozenset(event.dead))

    def _agent_left(self, event: from_agent.AgentLeft, now: float) -> None:
        job = self.job
        node = job.topology.nodes.get(event.node)
        if node is None or node.lost:
            return
        if (
            not event.ok
            and job.protected
            and ("recover" in job.settings.ladder or self.recovery.moves(event.node))
        ):
            self.recovery.lost(
                event.node, f"its launcher has left{': ' + event.why if event.why else ''}", now
            )
            return
        node.ended = event.ok
        if not event.ok:
            job.end(
                False,
                f"node {event.node} ended with an error{': ' + event.why if event.why else ''}",
            )
        elif job.topology.complete and all(n.ended for n in job.topology.nodes.values()):
            job.end(True, "every node ended well")

    def _agent_lost(self, event: e.AgentLost, now: float) -> None:
        job = self.job
        node = job.topology.nodes.get(event.node)
        if node is None or node.lost or node.ended is not None:
            return
        if job.protected:
            self.recovery.lost(event.node, event.why, now)
        else:
            node.lost = True
            job.end(False, f"node {event.node} is lost: {event.why}")

    def _standby_joined(self, event: from_agent.StandbyJoined, now: float) -> None:
        job = self.job
        job.topology.stood_down.discard(event.agent)
        if any(event.agent in (n.agent, n.heir) for n in job.topology.nodes.values()):
            return  # it has a node, or has been told to take one: said before that has reached it
        if event.agent not in job.topology.standbys:
            job.note(f"standby {event.agent[:8]} waits for a node; it can run {event.ranks} ranks")
        job.topology.standbys[event.agent] = event.ranks
        self.recovery.standby(now)

    def _standby_lost(self, event: e.StandbyLost, now: float) -> None:
        job = self.job
        job.topology.reserved.pop(event.agent, None)
        job.topology.stood_down.discard(event.agent)
        if job.topology.standbys.pop(event.agent, None) is not None:
            job.note(f"standby {event.agent[:8]} is lost: {event.why}")
            return
        number = next((i for i, n in job.topology.nodes.items() if n.heir == event.agent), None)
        if number is not None:
            self.recovery.lost(
                number, f"standby {event.agent[:8]}, which was to take it over: {event.why}", now
            )

    def _node_taken(self, event: from_agent.NodeTaken, now: float) -> None:
        job = self.job
        node = job.topology.nodes.get(event.node)
        if event.agent in job.topology.stood_down:  # it has not heard of that yet
            job.say(to_agent.StandDown(event.agent, event.node, "the node stays where it is"))
            return
        if node is None or node.heir != event.agent or len(event.left) != len(node.ranks):
            job.say(
                to_agent.Fence(event.agent, event.node, f"node {event.node} was not given to it")
            )
            return
        job.topology.join(
            event.node, node.ranks, event.store, node.epoch + 1, event.agent, event.records
        )
        job.topology.moved = True
        for rank, left in zip(node.ranks, event.left, strict=True):
            job.ranks[rank].left = left
        job.note(f"node {event.node} is taken over by standby {event.agent[:8]}")
        if self.hold.step is not None:
            self.hold.remind()
        self.recovery.nodes.keep_records()
        self.recovery.advance(now)

    # -- forming -----------------------------------------------------------------------------------

    def _rank_joined(self, event: from_rank.RankJoined, now: float) -> None:
        job = self.job
        job.ranks[event.rank].joined = True
        if job.protected or self.building:
            return
        if job.topology.complete and not self._to_join.any(
            job.ranks, lambda r: not job.ranks[r].joined
        ):
            self.building, self.forming = True, now + job.settings.rebuild
            self._rebuilt = set()
            job.generation += 1
            job.rebuild()
        elif self.forming is None:
            self.forming = now + job.settings.form

    def _formed(self) -> None:
        job = self.job
        job.protected, self.building, self.forming = True, False, None
        job.note(
            f"all {len(job.ranks)} ranks are protected; ladder: {', '.join(job.settings.ladder)}"
        )
        job.say(to_rank.Resume(job.pause, job.generation, 0))
        self.recovery.nodes.keep_records()

    # -- ranks -------------------------------------------------------------------------------------

    def _rank_died(self, event: from_agent.RankDied, now: float) -> None:
        job = self.job
        rank = job.ranks[event.rank]
        if not rank.alive:
            return
        rank.alive, rank.left = False, event.position or rank.left
        if job.protected:
            self.faults.died(event.rank, event.cause, now)
        elif self.building or self.forming is not None:
            # the launcher watches its processes itself; what was being built is void
            self._restart_all(f"rank {event.rank} {event.cause} before every rank was protected")

    def _rank_raised(self, event: from_rank.RankRaised, now: float) -> None:
        self.job.ranks[event.rank].raised = (event.step, event.text)

    def _collective_failed(self, event: from_rank.CollectiveFailed, now: float) -> None:
        if self.job.protected:
            self.faults.collective_failed(event, now)
        else:
            self._waiting.add(event.rank)

    def _rank_faulted(self, event: from_rank.RankFaulted, now: float) -> None:
        if not 0 <= event.fault < len(FAULTS):
            self.job.note(
                f"rank {event.rank} tells of fault type {event.fault}; known are 0 to"
                f" {len(FAULTS) - 1}: taken as {from_rank.OTHER}"
            )
            event = from_rank.RankFaulted(
                event.rank, event.incarnation, event.step, from_rank.OTHER, event.text, event.page
            )
        if self.job.protected:
            self.faults.device_failed(event, now)
        elif self.gathering is not None:
            self._waiting.add(event.rank)
        elif self.building or self.forming is not None:
            self._restart_all(
                f"rank {event.rank}: {FAULTS[event.fault]} fault before every rank was protected:"
                f" {event.text}"
            )

    def _device_level(self, event: e.DeviceLevel, now: float) -> None:
        node = self.job.topology.node_of(event.rank)
        moves = (
            bool(event.level)
            and node is not None
            and TABLE[NAMED[event.level]].asks is Asks.HOT_SWITCH
        )
        self.faults.levelled(
            event, now, self.switch.refusal(node) if moves and node is not None else ""
        )
        if moves and node is not None:
            self.switch.reported(
                from_operator.NodeSubHealthy(
                    "", node, f"device of rank {event.rank}: {event.text}"
                ),
                now,
            )

    def _rank_paused(self, event: from_rank.RankPaused, now: float) -> None:
        job = self.job
        if not job.protected:
            self._waiting.add(event.rank)
        elif self.recovery.incidents == 0 and 0 < event.pause == job.pause:
            # the last word of the manager before us has just reached the rank
            self.recovery.fault(UNDER_WAY, now)
            return
        self.recovery.paused(event, now)

    def _rank_rebuilt(self, event: from_rank.RankRebuilt, now: float) -> None:
        if self.building and event.generation == self.job.generation:
            self._rebuilt.add(event.rank)
            if len(self._rebuilt) == len(self.job.ranks):
                self._formed()
        else:
            self.recovery.rebuilt(event, now)

    def _rank_failed(self, event: from_rank.RankFailed, now: float) -> None:
        if event.generation != self.job.generation:
            return
        if self.building:
            self._restart_all(
                f"rank {event.rank} could not join generation {self.job.generation}: {event.reason}"
            )
        else:
            self.faults.failed(event, now)

    def _step_committed(self, event: from_rank.StepCommitted, now: float) -> None:
        if event.generation == self.job.generation:
            self.recovery.committed(event.rank, now)

    def _rank_held(self, event: from_rank.RankHeld, now: float) -> None:
        # in the others it is about to be taken back, and says so again
        if self.recovery.phase in (None, Phase.RESUME):
            self.hold.stopped(event)
        self.recovery.committed(event.rank, now)
        self._look(now)

    def _rank_finished(self, event: from_rank.RankFinished, now: float) -> None:
        job = self.job
        if event.step <= job.released:
            # a replacement, on its way to where the others have been
            job.say(to_rank.Release(job.released))
            return
        job.ranks[event.rank].finished = event.step
        self.recovery.committed(event.rank, now)
        self._look(now)

    def _rank_ended(self, event: from_agent.RankEnded, now: float) -> None:
        job, incident = self.job, self.recovery.incident
        rank = job.ranks[event.rank]
        if rank.ended or not rank.alive:
            return  # said again, by an agent that has reconnected
        if job.protected and event.step > job.released:
            self._rank_quit(event, now)
            return
        rank.ended = True
        if self.recovery.phase is Phase.RESUME:
            self.recovery.committed(event.rank, now)
        elif incident is not None:
            self.recovery.climb(
                Move.SPENT,
                f"rank {event.rank} has ended and cannot take part in a repair any more",
                now,
            )
        self._look(now)

    def _rank_quit(self, event: from_agent.RankEnded, now: float) -> None:
        """The process has ended by itself, with status 0, and its loop was not over. All may leave
        theirs together: nobody misses it then. Who is missed is dead."""
        job, incident = self.job, self.recovery.incident
        rank = job.ranks[event.rank]
        how = f"exited with status 0 before step {event.step}, in the middle of its loop"
        rank.left = event.position or rank.left
        if incident is not None and not (
            incident.phase is Phase.RESUME and event.rank in incident.committed
        ):
            rank.alive = False
            self.faults.died(event.rank, how, now)
            return
        rank.ended, rank.quit, rank.quit_at = True, how, event.step
        if all(s.ended for s in job.ranks.values()):
            job.note("all ranks have left their loops together")
            job.released = max(job.released, event.step)
            job.say(to_rank.Release(job.released))  # the launchers may leave
        self._look(now)

    def _switch_recovery(self, event: from_operator.RecoverySwitched, now: float) -> None:
        self.job.repairs = event.on
        text = (
            "faults are repaired"
            if event.on
            else "faults are not repaired until this is taken back; the next one ends the job"
        )
        if self.recovery.incident is not None:
            text += "; the incident under way goes on as it began"
        self.job.note(f"process-recover-enable {'on' if event.on else 'pause'}: {text}")
        self.job.say(to_operator.Answer(event.request, True, text))

    def _hold(self, event: from_operator.HoldRequested, now: float) -> None:
        self.hold.request(event.request)
        self._look(now)

    def _continue(self, event: from_operator.ContinueRequested, now: float) -> None:
        self.hold.release(event.request)
        self._look(now)

    # -- time and whole restarts -------------------------------------------------------------------

    def _tick(self, event: e.Tick, now: float) -> None:
        job = self.job
        if self.forming is not None and now >= self.forming:
            missing = [
                r
                for r, s in job.ranks.items()
                if not (r in self._rebuilt if self.building else s.joined)
            ]
            what = f"join generation {job.generation}" if self.building else "call protect()"
            limit = job.settings.rebuild if self.building else job.settings.form
            self._restart_all(f"ranks [{some(missing)}] did not {what} within {limit:.0f} s")
        elif self.gathering is not None and now >= self.gathering:
            if not self._missing_nodes(now):
                missing = [
                    r
                    for r, s in job.ranks.items()
                    if job.topology.node_of(r) is None or not s.joined
                ]
                self._restart_all(
                    f"a new manager has heard nothing of ranks [{some(missing)}] within"
                    f" {job.settings.form:.0f} s"
                )
        else:
            self.recovery.tick(now)
            self.watch.tick(now)
            self.switch.tick(now)

    def _missing_nodes(self, now: float) -> bool:
        """A new manager has not heard of some nodes: they were lost with the one before, if there
        are any."""
        job = self.job
        each, nodes = job.settings.ranks_per_node, job.topology.nodes
        missing = [n for n in range(job.settings.nodes) if n not in nodes]
        joined = all(job.ranks[r].joined for n in nodes.values() for r in n.ranks)
        if "recover" not in job.settings.ladder or not missing or not joined:
            return False
        epoch = max(n.epoch for n in nodes.values())
        for number in missing:
            ranks = tuple(range(number * each, number * each + each))
            if job.topology.join(number, ranks, ("", 0), epoch) is not None:
                return False
            nodes[number].keeper = self._keeps.get(number)
            for rank in ranks:
                job.ranks[rank].joined = True
        job.protected, self.gathering = True, None
        self.hold.complete()
        if self._new:
            self._join_with_new(f"nodes [{some(missing)}] were not heard", now)
        for number in missing:
            self.recovery.lost(
                number, "nothing is heard of it since the manager before this one was lost", now
            )
        return True

    def _drop(self, why: str) -> None:
        self.recovery.forget()
        self.faults.forget()
        self.watch.stop()
        self.switch.drop(why)
        self.hold.drop(why)

    def _restart_all(self, reason: str) -> None:
        job = self.job
        job.protected, self.building, self.forming, self.gathering = False, False, None, None
        self._drop(f"all ranks are restarted: {reason}")
        for rank in job.ranks.values():
            rank.joined = False
        job.note(f"all ranks are restarted: {reason}")
        epochs = {i: n.epoch for i, n in job.topology.nodes.items()}
        store, attempt = ("", 0), 0
        # launchers that were not there at the start could not meet as at the start
        if (job.restart or job.topology.moved) and (host := job.topology.store_host()) is not None:
            store, attempt = job.topology.nodes[host].store, max(epochs.values()) + 1
            job.topology.moved = True  # from now on they meet where they are told
        job.restart = ""
        for node in job.topology.nodes.values():
            node.told = False  # its next processes' records are kept by nobody yet
        job.say(to_agent.RestartAll(tuple(sorted(epochs.items())), reason, store, attempt))

"""Dispatches events to the parts that decide.

Use: `commands = coordinator.step(event, now)`; carry out the commands in order. `deadline()` is the
time at which a Tick is due. Beside it, the shell asks `admission.may` which agent may keep or fetch
records; that changes nothing. `now` is in seconds on any clock that does not go backwards.

The parts: votes go to `election`, agents to `admission`, a job that is formed or taken over to
`forming` and `succession`, restarts of all ranks to `restarts`, replaced pods to `pods`, a
framework that repairs itself to `framework`, faults to `faults`, reports in an incident to
`incident.machine`, ends of loops to `finishing`, requests of operators to `requests`, `pause`,
`leaving` and `tasks`, ranks that make no progress to `hangs`, sub-healthy nodes to `switch`.
"""

from __future__ import annotations

from collections.abc import Callable

from taskd.core import commands as c
from taskd.core import events as e
from taskd.core.advice import Advisor
from taskd.core.demand import Demand
from taskd.core.election.election import Election
from taskd.core.hang.hang_detector import HangDetector
from taskd.core.incident.faults import Faults
from taskd.core.incident.framework import Framework
from taskd.core.incident.machine import Recovery
from taskd.core.incident.phases import Phase
from taskd.core.job.pause import Pause
from taskd.core.job.state import JobState, Part
from taskd.core.lifecycle.finishing import Finishing
from taskd.core.lifecycle.forming import Forming
from taskd.core.lifecycle.restarts import Restarts
from taskd.core.nodes.admission import OVER, Admission
from taskd.core.nodes.claims import Claims
from taskd.core.nodes.fencing import Fencing
from taskd.core.nodes.growth import Growth
from taskd.core.nodes.pods import Pods
from taskd.core.nodes.succession import UNDER_WAY, Succession
from taskd.core.nodes.switch import Switch
from taskd.core.requests.intervals import Intervals
from taskd.core.requests.leaving import Leaving
from taskd.core.requests.profiling import Profiling
from taskd.core.requests.requests import Requests
from taskd.core.requests.tasks import Tasks
from taskd.core.settings import Settings
from taskd.messages import from_agent, from_operator, from_rank, to_operator

OF_VOTERS = e.VoterStated | e.AgentVoted | e.RosterKept | e.AgentDisconnected | e.OtherManager


class Coordinator:
    """Decides for one job; see the module docstring. `election`: this manager's; without one it is
    in charge without a vote. `advisor`: makes the advisor that may decide in place of the
    ladder."""

    def __init__(
        self,
        settings: Settings,
        election: Election | None = None,
        advisor: Callable[[Coordinator], Advisor] = Advisor,
    ) -> None:
        self.election = election or Election()
        self.job = JobState(settings, self.election)
        self.pause = Pause(self.job)
        self.recovery = Recovery(self.job, self.pause, lambda now: self.advisor.unadvised(now))
        self.faults = Faults(self.job, self.recovery, self.pause)
        self.growth = Growth(self.job, self.recovery, self.pause)
        self.switch = Switch(self.job, self.recovery, self.pause, self.growth)
        self.hangs = HangDetector(self.job, self.recovery, self.faults)
        self.finishing = Finishing(self.job, self.recovery, self.faults, self.pause)
        self.forming = Forming(self.job, self.recovery)
        self.requests = Requests(self.job, self.recovery, self.pause, self.finishing)
        saving = self.pause, self.finishing, self.switch
        self.leaving = Leaving(self.job, self.recovery, *saving, lambda: self.advisor.on)
        self.intervals = Intervals(self.job, self.leaving)
        parts = self.recovery, self.faults, self.pause, self.finishing
        self.tasks = Tasks(self.job, *parts, lambda *told: self.advisor.task_done(*told))
        self.profiling = Profiling(self.job)
        self.claims = Claims(self.job)
        self.succession = Succession(self.job, self.recovery, self.pause, self.forming, self.claims)
        self.restarts = Restarts(
            self.job,
            lambda: self.pods.waiting or self.succession.deadline is not None,
            self._forget,
        )
        self.pods = Pods(self.job, self.recovery.nodes, self.restarts.causes, self._forget)
        self.framework = Framework(self.job, self.recovery)
        self.advisor = advisor(self)
        joins = self.forming, self.succession, self.claims, self.pods
        self.admission = Admission(self.job, self.recovery, self.pause, *joins, self._drop)
        # in the order in which they are called
        self.parts: tuple[Part, ...] = (
            self.claims,
            self.forming,
            self.succession,
            self.recovery,
            self.faults,
            self.hangs,
            self.leaving,
            self.intervals,
            self.switch,
            self.growth,
            self.pause,
            self.tasks,
            self.advisor,
            self.restarts,
            self.framework,
            self.pods,
            self.profiling,
            Fencing(self.job),
        )
        # of these, for each event: most do nothing then
        self._following = [p for p in self.parts if type(p).follow_up is not Part.follow_up]
        # A handler returns the events that follow from its event.
        self._handlers: dict[type, Callable[..., list[e.Event] | None]] = {
            e.VoterStated: lambda event, now: self.job.order(self.election.state(event)),
            e.AgentVoted: lambda event, now: self.job.order(self.election.voted(event)),
            e.RosterKept: self._roster_kept,
            e.AgentDisconnected: lambda event, now: self.election.disconnected(event.agent),
            e.OtherManager: lambda event, now: self.election.candidate.yield_to(event.term),
            from_agent.AgentJoined: self._agent_joined,
            e.AgentAnswered: self.admission.answered,
            from_agent.AgentLeft: self.admission.left,
            e.AgentLost: self.admission.lost,
            e.AgentEnded: self.succession.ended,
            from_agent.StandbyJoined: self._standby_joined,
            e.StandbyLost: self.admission.standby_lost,
            from_agent.AskedToLeave: self.leaving.asked_to_leave,
            from_agent.NodeTaken: self._node_taken,
            from_agent.RecordsTaken: self.recovery.took,
            from_operator.NodeSubHealthy: self.switch.reported,
            e.SubHealthyStrategySet: self.switch.strategy_set,
            from_agent.NodePrepared: self.switch.prepared,
            from_agent.PreparationFailed: self.switch.failed,
            e.AdvisorConnected: self._advisor_connected,
            e.AdvisorSignal: self.advisor.signal,
            e.AdvisorTask: self._advisor_task,
            from_operator.NicSwitchRequested: self.tasks.switch_nics,
            from_operator.StressTestRequested: self.tasks.test,
            from_rank.TaskDone: self.tasks.done,
            from_operator.ProfileRequested: self.profiling.requested,
            e.ProfileSwitched: self.profiling.switched,
            from_rank.StepTimes: self.profiling.took,
            e.StepsWaited: self._stepped,
            e.FormerLost: self.recovery.former_lost,
            e.DeviceLevel: self._device_level,
            from_operator.RecoverySwitched: self.requests.switch_recovery,
            from_operator.SaveRequested: self.leaving.requested,
            from_rank.RankJoined: self.forming.joined,
            from_rank.OptimizerReplicas: self.framework.replicas,
            from_rank.StrategyRequested: self.framework.requested,
            from_agent.RankDied: self._rank_died,
            from_rank.RankRaised: self._rank_raised,
            from_rank.NotProtected: self._not_protected,
            from_rank.CollectiveFailed: self._collective_failed,
            from_rank.RankFaulted: self._rank_faulted,
            from_agent.RankStalled: self.hangs.stalled,
            from_agent.ProgressReport: self.hangs.present,
            from_rank.RankInterrupted: self._rank_interrupted,
            from_rank.RankReady: self.recovery.ready,
            from_rank.RankRebuilt: self._rank_rebuilt,
            from_rank.RankRestored: self.recovery.restored,
            from_rank.RankFailed: self._rank_failed,
            from_rank.RankPosition: self.leaving.told,
            from_rank.StateSaved: self.leaving.saved,
            from_rank.SaveEstimate: self.leaving.estimated,
            from_agent.RecordsSaved: self.leaving.saved,
            from_agent.Sealed: self.leaving.saved,
            from_rank.StepCommitted: self._step_committed,
            from_rank.RankFinished: self.finishing.finished,
            from_agent.RankEnded: self.finishing.ended,
            from_agent.RankBusy: self.recovery.busy,
            from_agent.SchedulerDied: self.restarts.scheduler_died,
            from_rank.GroupReady: self.restarts.connected,
            from_operator.PauseRequested: self.requests.pause,
            from_operator.ContinueRequested: self.requests.resume,
            from_agent.StepsBegun: lambda event, now: self.pause.begun(event),
            from_rank.RankPaused: self._rank_paused,
            from_rank.RankPassed: lambda event, now: self.pause.passed(event),
            e.Tick: self._tick,
        }

    # -- the shell's side --------------------------------------------------------------------------

    def step(self, event: e.Event, now: float, at: float | None = None) -> list[c.Command]:
        """Handle one event; return the commands to carry out, in order. Late and repeated events
        return none, nor do events before this manager is in charge: agents register again once it
        is. `at`: when the event happened, if known to be before `now`; for the journal alone."""
        job = self.job
        job.out, job.at = [], now if at is None else at
        if job.over:
            self._refuse(event, OVER)
        elif self.election.in_charge or isinstance(event, OF_VOTERS):
            interruption, incident = job.interruption, self.recovery.incident
            self._handle(event, now)
            self._follow_up(interruption, incident is not None, now)
        else:
            self._refuse(event, "this manager waits for the votes of a majority of the agents")
        kept = job.protected or job.topology.complete  # its manager has a successor
        if not job.over and (kept or self.election.candidate.deposed):
            job.order(self.election.tend(job.topology.unaccounted))
        return job.out

    def _handle(self, event: e.Event, now: float) -> None:
        """Handle the event and those that follow from it."""
        events = [event]
        for following in events:
            if self._concerns_us(following) and not self.job.over:
                events += self._handlers[type(following)](following, now) or ()

    def _concerns_us(self, event: e.Event) -> bool:
        """Whether an event concerns this job and, for a rank, its current incarnation, still
        running. A device outlives the processes on it."""
        job, number = self.job, getattr(event, "rank", None)
        if number is None:
            return True
        if job.closing or number in job.away:  # closing: by an event that this one follows from
            return False
        if number not in job.ranks:
            what = f"{type(event).__name__} of rank {number}"
            job.note(f"{what} ignored: this job has ranks 0 to {job.topology.world_size - 1}")
            return False
        present = job.ranks[number].incarnation
        return getattr(event, "incarnation", present) == present and not job.topology.is_lost(
            number
        )

    def _follow_up(self, interruption: int, incident: bool, now: float) -> None:
        """Do what may follow from any event. `interruption`, `incident`: their values before it."""
        job = self.job
        self.pods.decide(now)
        self.restarts.decide()
        for part in self._following:
            part.follow_up(now)
        if job.over:
            said, job.out = job.out, []
            self.pause.drop(OVER)
            for ends in (self.switch, self.leaving, self.admission):
                ends.end()
            job.out += said  # answers first: the manager may exit after the rest
        elif job.interruption > interruption and self.recovery.incident is not None:
            self.hangs.stop()
            self.pause.again()
        elif incident and self.recovery.incident is None:
            self.hangs.stop()
            self.finishing.check(now)

    def _drop(self, why: str) -> None:
        """Forget everything about processes that are gone."""
        for part in self.parts:
            part.drop(why)

    def _forget(self, why: str) -> None:
        """Forget all ranks' processes: they are about to end, and the scripts start over."""
        self.job.begin_anew()
        self._drop(why)
        self.forming.some_joined = False

    def _refuse(self, event: e.Event, why: str) -> None:
        """Answer requests while the manager does not act: it is not in charge yet, or the job is
        over."""
        if isinstance(event, from_operator.FromOperator | e.DeviceLevel) and event.request:
            self.job.say(to_operator.Answer(event.request, False, why))
        elif isinstance(event, from_agent.AgentJoined) and self.job.over:
            self.job.say(c.Refuse(event.agent, event.node, OVER))

    def deadline(self) -> float | None:
        """When the next Tick is due; None if there is no deadline."""
        if self.job.over or not self.election.in_charge:
            return None
        due = (part.deadline for part in self.parts)
        return min((t for t in due if t is not None), default=None)

    @property
    def under_way(self) -> bool:
        """Whether a launcher that starts now can only replace a lost node. Under a manager of a
        later term the job had already formed, even if not all nodes have registered yet."""
        later = self.election.candidate.term > 1
        return self.job.protected or self.pods.applies or later

    # -- agents ------------------------------------------------------------------------------------

    def _roster_kept(self, event: e.RosterKept, now: float) -> None:
        self.election.candidate.kept(event.agent, event.stamp)
        self.admission.roster_changed(now)
        self.pods.assign(now)

    def _agent_joined(self, event: from_agent.AgentJoined, now: float) -> list[e.Event]:
        following = self.admission.joined(event, now)
        node = self.job.topology.nodes.get(event.node)
        if node is not None and node.agent == event.agent:
            for part in self.parts:
                part.registered(event, now)
        return following

    def _node_taken(self, event: from_agent.NodeTaken, now: float) -> None:
        self.admission.taken(event, now)
        self.restarts.taken(event)

    def _standby_joined(self, event: from_agent.StandbyJoined, now: float) -> list[e.Event]:
        self.switch.inherit(event)
        following = self.admission.standby_joined(event, now)
        self.pods.assign(now)
        return following

    def _advisor_connected(self, event: e.AdvisorConnected, now: float) -> None:
        self.advisor.connected(event, now)
        self.tasks.begin_anew(now)

    def _advisor_task(self, event: e.AdvisorTask, now: float) -> None:
        if self.advisor.on:  # otherwise it has begun anew
            self.tasks.of_advisor(event, now)

    # -- ranks -------------------------------------------------------------------------------------

    def _rank_died(self, event: from_agent.RankDied, now: float) -> None:
        job, rank = self.job, self.job.ranks[event.rank]
        if not rank.alive:
            return
        rank.alive, rank.left = False, event.position or rank.left
        self.restarts.died(event, now)
        if job.protected:
            self.faults.died(event.rank, event.cause, now, event.raised)

    def _rank_raised(self, event: from_rank.RankRaised, now: float) -> None:
        self.job.ranks[event.rank].raised = (event.step, event.text)
        if event.refused and self.job.protected and not self.job.over:
            self.faults.refused(event, now)

    def _not_protected(self, event: from_rank.NotProtected, now: float) -> None:
        if text := self.forming.refused(event):
            self._forget(text)
            self.job.unprotected = text

    def _collective_failed(self, event: from_rank.CollectiveFailed, now: float) -> None:
        if self.job.protected:
            self.faults.collective_failed(event, now)
        elif self.job.unprotected:
            self.job.restart_all(f"rank {event.rank}: a collective failed: {event.text}")
        else:
            self.succession.waits(event.rank)

    def _rank_faulted(self, event: from_rank.RankFaulted, now: float) -> None:
        event = self.faults.known(event)
        self.job.ask(event.load)
        if self.job.protected:
            self.faults.device_failed(event, now)
        elif self.succession.deadline is not None:
            self.succession.waits(event.rank)
        elif self.forming.under_way or self.job.unprotected:
            self.job.restart_all(f"{self.faults.text(event)}, while not every rank is protected")

    def _stepped(self, event: e.StepsWaited, now: float) -> None:
        self.profiling.waited(event, now)
        self.intervals.stepped(event, now)

    def _device_level(self, event: e.DeviceLevel, now: float) -> None:
        node = self.job.topology.node_of(event.rank)
        moves = node if event.demand is Demand.MOVE_NODE else None
        self.faults.levelled(event, now, self.switch.refusal(moves) if moves is not None else "")
        if moves is not None:
            why = f"device of rank {event.rank}: {event.text}"
            self.switch.reported(from_operator.NodeSubHealthy("", moves, why), now)

    def _rank_interrupted(self, event: from_rank.RankInterrupted, now: float) -> None:
        self.job.ask(event.position.load)
        if not (job := self.job).protected:
            self.succession.waits(event.rank)
        elif self.recovery.incidents == 0 and 0 < event.interruption == job.interruption:
            # the previous manager's last order has only now reached the rank
            self.recovery.fault(UNDER_WAY, now)
            return
        self.recovery.interrupted(event, now)

    def _rank_rebuilt(self, event: from_rank.RankRebuilt, now: float) -> None:
        if self.forming.building and event.generation == self.job.generation:
            self.forming.rebuilt(event.rank)
        else:
            self.recovery.rebuilt(event, now)

    def _rank_failed(self, event: from_rank.RankFailed, now: float) -> None:
        if event.generation == self.job.generation and not self.forming.failed(event):
            self.faults.failed(event, now)

    def _step_committed(self, event: from_rank.StepCommitted, now: float) -> None:
        if event.generation == self.job.generation:
            self.recovery.committed(event.rank, now)

    def _rank_paused(self, event: from_rank.RankPaused, now: float) -> None:
        # in other phases the rank is about to be rolled back, and will report again
        if self.recovery.phase in (None, Phase.RESUME):
            self.pause.stopped(event)
        self.recovery.committed(event.rank, now)
        self.finishing.check(now)

    def _tick(self, event: e.Tick, now: float) -> list[e.Event]:
        for part in self.parts:
            if (following := part.tick(now)) is not None:
                return list(following)
        return []

"""Handles sub-healthy nodes, which still work but are unreliable.

As configured, the node is ignored, the state is saved and the job ends, the job just ends, or the
node *moves*: a standby takes its place while the job continues. The standby starts the node's
ranks, which run the user's script up to its first attempt; when they are ready, all ranks are
paused before the same step, and the node moves in an incident of its own (strategy hot-switch). A
fault before the new ranks have their state leaves the node where it is. One node moves at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from taskd.core import commands as c
from taskd.core import events as e
from taskd.core.incident.machine import Recovery
from taskd.core.incident.state import Leg, Moving
from taskd.core.job.ladder import END, MOVE, SAVE, SUB_HEALTHY
from taskd.core.job.pause import Pause
from taskd.core.job.state import JobState, Part
from taskd.core.nodes.growth import Growth
from taskd.messages import from_agent, from_operator, to_agent, to_operator
from taskd.messages.values import Preparation

# preparations for one move, in case ranks of the node are replaced or the standby is needed
# elsewhere meanwhile
TRIES = 3


class Stage(Enum):
    WAITING = "waiting for a standby"
    PREPARING = "a standby is being prepared"
    PAUSING = "all ranks are pausing"
    MOVING = "moving"


@dataclass
class _Plan:
    """A node that is to move."""

    node: int
    why: str
    requests: list[str] = field(default_factory=list)
    stage: Stage = Stage.WAITING
    deadline: float | None = None
    assignee: str = ""
    incarnations: tuple[int, ...] = ()
    tries: int = 0
    moving: Moving | None = None
    asked: bool = False  # a standby was asked for, and may come for it alone


NO_RECORDS = (
    "its framework copies its own state, so that a standby has nothing to prepare with; stop the"
    " node's launcher, and the strategy recover moves its ranks"
)


class Switch(Part):
    def __init__(self, job: JobState, recovery: Recovery, pause: Pause, growth: Growth) -> None:
        """`growth`: standbys prepare for it, too."""
        self._job, self._recovery, self._pause = job, recovery, pause
        self._growth = growth
        self._plans: list[_Plan] = []  # the first one is under way
        # moves that an earlier manager began, by standby
        self._inherited: dict[str, Preparation] = {}
        self._ordered: set[str] = set()  # standbys whose preparation is known here

    @property
    def deadline(self) -> float | None:
        return self._plans[0].deadline if self._plans else None

    # -- reports -----------------------------------------------------------------------------------

    def reported(self, event: from_operator.NodeSubHealthy, now: float) -> None:
        job, number, strategy = self._job, event.node, self._job.sub_healthy
        text = f"node {number} is sub-healthy: {event.why}"
        refusal = self.refusal(number)
        job.note(f"{text}; {refusal or SUB_HEALTHY[strategy]}")
        if number in job.topology.nodes:
            job.say(c.MarkSubHealthy(number, event.why))
        if refusal:
            self._answer([event.request], False, refusal)
        elif strategy in (SAVE, END):
            self._answer([event.request], True, f"{text}: {SUB_HEALTHY[strategy]}")
            self._recovery.leave(text, ("dump", "exit") if strategy == SAVE else ("exit",), now)
        elif strategy == MOVE:
            self._plan(number, event.why).requests.append(event.request)
        else:
            self._answer([event.request], True, f"{text}: ignored")

    def _plan(self, number: int, why: str) -> _Plan:
        plan = next((p for p in self._plans if p.node == number), None)
        if plan is None:
            self._plans.append(plan := _Plan(number, why))
        return plan

    def move(self, number: int, why: str) -> bool:
        """Move the node, whatever is done about sub-healthy ones; False if it cannot be."""
        if self.refusal(number, moves=True):
            return False
        self._plan(number, why)
        return True

    def strategy_set(self, event: e.SubHealthyStrategySet, now: float) -> None:
        """From the next report on; a move under way is completed."""
        if event.strategy != self._job.sub_healthy:
            self._job.sub_healthy = event.strategy
            self._job.note(f"a sub-healthy node: {SUB_HEALTHY[event.strategy]}, from now on")

    def moves(self, number: int) -> bool:
        """Whether the node is about to move, or does."""
        return any(plan.node == number for plan in self._plans)

    def ready(self, number: int) -> bool:
        """Whether a standby is ready to be that node."""
        stages = (Stage.PAUSING, Stage.MOVING)
        return any(plan.node == number and plan.stage in stages for plan in self._plans)

    def refusal(self, number: int, moves: bool = False) -> str:
        """Why a sub-healthy node cannot be handled; "" if it can. `moves`: it is to move in any
        case."""
        job, topology = self._job, self._job.topology
        node = topology.nodes.get(number)
        move = moves or job.sub_healthy == MOVE
        reasons = (
            (node is None, f"this job has no node {number}"),
            (node is not None and not node.living, f"node {number} is lost"),
            (not job.protected, job.unready),
            (
                move and len(job.topology.nodes) == 1,
                "a job of one node has no other copy of its state",
            ),
            (move and job.handlers, NO_RECORDS),
            (
                move and node is not None and not topology.away.isdisjoint(node.ranks),
                f"ranks of node {number} are away, others stand in for them",
            ),
        )
        return next((why for holds, why in reasons if holds), "")

    def prepared(self, event: from_agent.NodePrepared, now: float) -> None:
        self._growth.prepared(event, now)
        plan = self._with(event.node, event.agent)
        if plan is not None and plan.stage is Stage.PREPARING:
            self._job.note(f"standby {event.agent[:8]} is ready to be node {event.node}")
            plan.stage, plan.deadline = Stage.PAUSING, now + self._job.settings.pause_all
            self._pause.begin_move()

    def failed(self, event: from_agent.PreparationFailed, now: float) -> None:
        self._growth.failed(event, now)
        plan, why = (
            self._with(event.node, event.agent),
            f"standby {event.agent[:8]} cannot be node {event.node}: {event.why}",
        )
        if plan is None:
            return
        if plan.stage is not Stage.MOVING:
            self._break_off(plan, why)
        elif plan.moving is not None and not plan.moving.done and not plan.moving.failed:
            self._recovery.fault(why, now)

    def inherit(self, event: from_agent.StandbyJoined) -> None:
        """A standby prepares for a node. A manager takes that up if an earlier one ordered it."""
        self._growth.joined()
        if self._growth.has(event.agent):
            return
        if event.prepares is None:
            self._inherited.pop(event.agent, None)
        elif event.agent not in self._ordered:
            self._ordered.add(event.agent)
            self._inherited[event.agent] = event.prepares

    def _take_up(self, agent: str, begun: Preparation, now: float) -> None:
        """Continue an earlier manager's move, or begin it anew."""
        node, why = begun.node, self.refusal(begun.node)
        if why or any(p.node == node for p in self._plans):
            self._job.say(to_agent.StandDown(agent, node, why or "the node is already moving"))
            return
        self._plans.append(plan := _Plan(node, begun.reason))
        self._job.note(f"node {node} moves, as ordered by the previous manager: {begun.reason}")
        fits = begun.incarnations == self._incarnations(node)
        if len(self._plans) > 1 or not fits or begun.epoch != self._epoch(node):
            self._job.say(to_agent.StandDown(agent, node, "its move starts over"))
            return
        self._reserve(plan, agent, now)
        if begun.ready:
            self.prepared(from_agent.NodePrepared(node, agent), now)

    def _epoch(self, node: int) -> int:
        return self._job.topology.nodes[node].epoch + 1

    def _with(self, node: int, agent: str) -> _Plan | None:
        """Return the plan under way, if it is for that node and standby."""
        plan = self._plans[0] if self._plans else None
        return plan if plan is not None and (plan.node, plan.assignee) == (node, agent) else None

    # -- stages ------------------------------------------------------------------------------------

    def follow_up(self, now: float) -> None:
        """Continue or abort the move under way."""
        if self._job.over:
            return
        standbys = self._job.topology.standbys
        for agent in [a for a in self._inherited if self._job.protected and a in standbys]:
            self._take_up(agent, self._inherited.pop(agent), now)
        while self._plans and self._advance(self._plans[0], now):
            pass

    def _advance(self, plan: _Plan, now: float) -> bool:
        """Advance a plan by one stage; return whether there may be more to do at once."""
        topology, recovery = self._job.topology, self._recovery
        node = topology.nodes[plan.node]
        if plan.stage is Stage.MOVING:
            assert plan.moving is not None
            if recovery.incident is None or plan.moving.failed:
                return self._moved(plan, plan.moving)
            return False
        # the standby is lost, or was given a lost node
        if plan.assignee and plan.assignee not in topology.standbys:
            reserved = node.assignee == plan.assignee
            plan.assignee = ""
            if not reserved:
                return self._again(plan, "the standby is lost, or was needed for a lost node", now)
        if not node.living:
            return self._break_off(plan, "the node is lost")
        if not topology.away.isdisjoint(node.ranks):
            return self._break_off(plan, self.refusal(plan.node, moves=True))
        if any(r.ended for r in self._job.ranks.values()):
            return self._break_off(plan, "the job is at its end")
        if plan.stage is Stage.WAITING:
            return self._prepare(plan, now)
        if plan.incarnations != self._incarnations(plan.node):
            return self._again(plan, "a rank of the node was replaced meanwhile", now)
        free = recovery.incident is None and not self._pause.busy
        if plan.stage is Stage.PAUSING and free and self._pause.all_paused:
            plan.stage, plan.deadline = Stage.MOVING, None
            plan.moving = Moving((Leg(plan.node, plan.assignee),), plan.why)
            recovery.switch(plan.moving, now)
            return True
        return False

    def _prepare(self, plan: _Plan, now: float) -> bool:
        job, topology = self._job, self._job.topology
        node = topology.nodes[plan.node]
        agent = topology.free(len(node.ranks))
        if agent is None:
            if plan.deadline is None:
                job.note(f"node {plan.node} waits for a standby to move to")
                job.say(c.AskForStandby(plan.node, True))
                plan.asked = True
                plan.deadline = now + job.settings.reschedule
            return False
        self._reserve(plan, agent, now)
        job.say(
            to_agent.Prepare(
                agent=agent,
                node=plan.node,
                ranks=node.ranks,
                incarnations=plan.incarnations,
                nodes=len(topology.nodes),
                world_size=topology.world_size,
                epoch=self._epoch(plan.node),
                records=(node.records,),
                reason=plan.why,
            )
        )
        return False

    def _reserve(self, plan: _Plan, agent: str, now: float) -> None:
        self._job.topology.reserved[agent] = plan.node
        self._ordered.add(agent)
        plan.assignee, plan.stage, plan.tries = agent, Stage.PREPARING, plan.tries + 1
        plan.deadline = now + self._job.settings.prepare
        plan.incarnations = self._incarnations(plan.node)

    def _incarnations(self, node: int) -> tuple[int, ...]:
        """Return the incarnations of the next processes of the node's ranks."""
        return tuple(
            self._job.ranks[r].incarnation + 1 for r in self._job.topology.nodes[node].ranks
        )

    def _moved(self, plan: _Plan, moving: Moving) -> bool:
        if not moving.done:
            return self._break_off(plan, moving.failed)
        self._plans.remove(plan)
        self._job.note(
            text := f"node {plan.node} has moved to standby {plan.assignee[:8]}: {plan.why}"
        )
        self._answer(plan.requests, True, text)
        return True

    def _again(self, plan: _Plan, why: str, now: float) -> bool:
        """Start the plan again from the beginning, with any standby."""
        if plan.tries >= TRIES:
            return self._break_off(plan, why)
        self._job.note(f"the move of node {plan.node} starts over: {why}")
        self._stand_down(plan, why)
        plan.stage, plan.deadline = Stage.WAITING, None
        return True

    def _break_off(self, plan: _Plan, why: str) -> bool:
        if plan.asked:
            self._job.say(c.AskForStandby(plan.node, False))
        self._stand_down(plan, why)
        self._plans.remove(plan)
        self._job.note(text := f"move of node {plan.node} abandoned, the job is unaffected: {why}")
        self._answer(plan.requests, False, text)
        return True

    def _stand_down(self, plan: _Plan, why: str) -> None:
        if self._job.topology.reserved.pop(plan.assignee, None) is not None:
            self._job.say(to_agent.StandDown(plan.assignee, plan.node, why))
        plan.assignee = ""
        self._pause.end_move()

    def end(self) -> None:
        """The job is over."""
        self._growth.end()
        for plan in self._plans:
            self._answer(plan.requests, False, "the job is over")
        self._plans.clear()

    def drop(self, why: str) -> None:
        """Abort all moves: their processes are gone."""
        for plan in list(self._plans):
            self._break_off(plan, why)

    def tick(self, now: float) -> None:
        plan = self._plans[0] if self._plans else None
        if plan is None or plan.deadline is None or now < plan.deadline:
            return
        waits = self._recovery.incident is not None or self._pause.busy
        if plan.stage is Stage.PAUSING and waits:
            plan.deadline = now + self._job.settings.pause_all  # they pause when that is over
            return
        limits = {
            Stage.WAITING: (self._job.settings.reschedule, "no standby has come"),
            Stage.PREPARING: (self._job.settings.prepare, "the standby was not ready"),
            Stage.PAUSING: (
                self._job.settings.pause_all,
                "not all ranks had stopped before the same step",
            ),
        }
        limit, what = limits[plan.stage]
        self._break_off(plan, f"{what} within {limit:.0f} s")

    def _answer(self, requests: list[str], ok: bool, text: str) -> None:
        for request in requests:
            if request:
                self._job.say(to_operator.Answer(request, ok, text))

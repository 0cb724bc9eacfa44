"""Brings nodes back whose ranks are away: the job grows.

A standby that comes starts the node's ranks, which run the user's script up to its first attempt
while the others train. When they are ready, all ranks are paused before the same step, and the
standby gets the node in an incident of its own (strategy grow): its ranks take the records that
their stand-ins have carried on, and the replicated state from replicas. No step is repeated. A
fault before they have it leaves the job as it was, and growth begins anew. An advisor may hold
growth: standbys are prepared meanwhile, and the ranks train on until it says when.

Nodes come back together whose ranks make whole lanes (core/job/elastic.py), the lowest first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from taskd.core.abbreviate import abbreviate
from taskd.core.incident.machine import Recovery
from taskd.core.incident.state import Leg, Moving
from taskd.core.job.elastic import Lanes
from taskd.core.job.pause import Pause
from taskd.core.job.state import JobState, Part
from taskd.messages import from_agent, to_agent

# growth that has failed this often in a row is not tried again until another standby comes
TRIES = 3


class Stage(Enum):
    PREPARING = "standbys are being prepared"
    PAUSING = "all ranks are pausing"
    MOVING = "growing"


@dataclass
class _Plan:
    """Nodes that come back, each with its standby; `ready`: the nodes that are prepared."""

    standbys: dict[int, str]
    deadline: float
    stage: Stage = Stage.PREPARING
    ready: set[int] = field(default_factory=set)
    moving: Moving | None = None

    @property
    def prepared(self) -> bool:
        return self.ready == self.standbys.keys()


class Growth(Part):
    def __init__(self, job: JobState, recovery: Recovery, pause: Pause) -> None:
        self._job, self._recovery, self._pause = job, recovery, pause
        self._plan: _Plan | None = None
        self._failed = 0  # times in a row
        self.held = False  # by an advisor (core/advice.py), which will say when

    @property
    def deadline(self) -> float | None:
        plan = self._plan
        waits = plan is None or plan.stage is Stage.MOVING or self._holds(plan)
        return plan.deadline if plan is not None and not waits else None

    def _holds(self, plan: _Plan) -> bool:
        """Whether it waits for the advisor's word alone."""
        return self.held and plan.stage is Stage.PREPARING and plan.prepared

    @property
    def given_up(self) -> bool:
        """Whether it is not tried again until another standby comes."""
        return self._failed >= TRIES

    def joined(self) -> None:
        """A standby has come."""
        self._failed = 0

    def has(self, agent: str) -> bool:
        """Whether the standby prepares for a node that comes back."""
        return self._plan is not None and agent in self._plan.standbys.values()

    # -- reports -----------------------------------------------------------------------------------

    def prepared(self, event: from_agent.NodePrepared, now: float) -> None:
        plan = self._plan
        if plan is None or plan.standbys.get(event.node) != event.agent:
            return
        plan.ready.add(event.node)
        waits = ", which waits for the advisor's word" if self.held else ""
        self._job.note(f"standby {event.agent[:8]} is ready to be node {event.node}{waits}")

    def failed(self, event: from_agent.PreparationFailed, now: float) -> None:
        plan = self._plan
        if plan is None or plan.standbys.get(event.node) != event.agent:
            return
        why = f"standby {event.agent[:8]} cannot be node {event.node}: {event.why}"
        if plan.stage is not Stage.MOVING:
            self._break_off(why)
        elif plan.moving is not None and not plan.moving.done and not plan.moving.failed:
            self._recovery.fault(why, now)

    # -- stages ------------------------------------------------------------------------------------

    def follow_up(self, now: float) -> None:
        if self._job.over:
            return
        if self._job.protected and self._recovery.incident is None:
            self._recovery.elastic.take_over()
            self._recovery.elastic.free_idle()
        if self._plan is not None and self._plan.stage is Stage.MOVING:
            self._look(self._plan)
        elif self._plan is not None:
            self._advance(self._plan, now)
        if self._plan is None:  # also for what is still away
            self._begin(now)

    def _begin(self, now: float) -> None:
        """Have standbys prepare for as many whole lanes as they suffice for."""
        job, topology = self._job, self._job.topology
        quiet = job.protected and self._recovery.incident is None and not self._pause.wanted
        if not job.away or not topology.standbys or not quiet or self.given_up:
            return
        if any(rank.ended for rank in job.ranks.values()) or job.outnumbered:
            return
        nodes = self._nodes()
        if not nodes:
            return
        standbys: dict[int, str] = {}
        for number in nodes:
            agent = topology.free(len(topology.nodes[number].ranks))
            assert agent is not None  # `_nodes` has counted them
            topology.reserved[agent] = number
            standbys[number] = agent
        self._plan = _Plan(standbys, now + job.settings.prepare)
        for number, agent in standbys.items():
            self._prepare(number, agent)

    def _nodes(self) -> list[int]:
        """The nodes that can come back with the standbys that are free."""
        job, topology = self._job, self._job.topology
        each = job.settings.ranks_per_node
        room = sum(
            ranks >= each for a, ranks in topology.standbys.items() if a not in topology.reserved
        )
        nodes: set[int] = set()
        for together in self._together():
            back = {r for n in nodes | together for r in topology.nodes[n].ranks}
            if len(nodes | together) <= room and self._whole(set(job.away) - back):
                nodes |= together
        return sorted(nodes)

    def _together(self) -> list[set[int]]:
        """Nodes without ranks, in groups of those that have ranks of the same lanes. The launchers
        of some still run. Ascending, and all of them in the end: a lane alone may have to wait."""
        topology, lanes = self._job.topology, self._job.lanes or Lanes(())
        gone = {n for n, node in topology.nodes.items() if topology.gone(node)}
        groups: list[set[int]] = []
        for number in lanes.broken(self._job.away):
            group = {n for r in lanes.lane(number) if (n := topology.node_of(r)) is not None}
            for other in [g for g in groups if g & group]:
                groups.remove(other)
                group |= other
            groups.append(group)
        return [*(g for g in groups if g <= gone), gone]

    def _whole(self, away: set[int]) -> bool:
        """Whether these ranks, if no others are away, make whole lanes."""
        lanes: Lanes | None = self._job.lanes
        if lanes is None:  # this manager does not know them
            return not away
        # see Lanes.stand_ins: who stands in for the first rank does not change
        first = [(m[0], min(r for r in m if r not in away)) for m in lanes.sets]
        kept = all(r not in away or self._job.stand_ins[r] == lowest for r, lowest in first)
        return kept and away == {r for n in lanes.broken(away) for r in lanes.lane(n)}

    def _prepare(self, number: int, agent: str) -> None:
        job, node = self._job, self._job.topology.nodes[number]
        reason = f"node {number} comes back"
        job.note(f"standby {agent[:8]} prepares to be node {number}: its ranks are away")
        sources = self._recovery.nodes.sources(node.ranks, agent)
        job.say(
            to_agent.Prepare(
                agent=agent,
                node=number,
                ranks=node.ranks,
                incarnations=tuple(job.away[r].incarnation + 1 for r in node.ranks),
                nodes=len(job.topology.nodes),
                world_size=job.topology.world_size,
                epoch=node.epoch + 1,
                records=(),
                reason=reason,
                nested=sources,
                own_state=job.handlers,
            )
        )

    def _advance(self, plan: _Plan, now: float) -> None:
        job, topology = self._job, self._job.topology
        if gone := [a for a in plan.standbys.values() if a not in topology.standbys]:
            self._break_off(f"standby {gone[0][:8]} is lost, or was needed for a lost node")
            return
        if any(rank.ended for rank in job.ranks.values()):
            self._break_off("the job is at its end")
            return
        if plan.stage is Stage.PREPARING and plan.prepared and not self.held:
            plan.stage, plan.deadline = Stage.PAUSING, now + job.settings.pause_all
            self._pause.begin_move()
        free = self._recovery.incident is None and not self._pause.busy
        if plan.stage is Stage.PAUSING and free and self._pause.all_paused:
            back = {r for n in plan.standbys for r in topology.nodes[n].ranks}
            fits = self._whole(set(job.away) - back)
            if why := job.outnumbered or ("" if fits else "other ranks have left meanwhile"):
                self._break_off(why)
                return
            plan.stage = Stage.MOVING
            legs = tuple(Leg(node, agent) for node, agent in plan.standbys.items())
            plan.moving = Moving(legs, "they were away" if len(legs) > 1 else "it was away", True)
            self._recovery.switch(plan.moving, now)

    def _look(self, plan: _Plan) -> None:
        """Whether the incident is over, and how."""
        moving = plan.moving
        assert moving is not None
        if moving.failed:
            self._break_off(moving.failed)
        elif self._recovery.incident is None:
            self._plan, self._failed = None, 0
            self._job.note(f"nodes [{abbreviate(plan.standbys)}] are back")
            self._recovery.elastic.tell()

    def _break_off(self, why: str) -> None:
        plan, self._plan = self._plan, None
        assert plan is not None
        self._failed += 1
        nodes = abbreviate(plan.standbys)
        self._job.note(f"nodes [{nodes}] do not come back, the job goes on as it is: {why}")
        for number, agent in plan.standbys.items():
            if self._job.topology.reserved.pop(agent, None) is not None:
                self._job.say(to_agent.StandDown(agent, number, why))
        self._pause.end_move()

    def drop(self, why: str) -> None:
        """All ranks' processes are gone."""
        if self._plan is not None:
            self._break_off(why)

    def end(self) -> None:
        """The job is over."""
        self._plan = None

    def tick(self, now: float) -> None:
        plan = self._plan
        if plan is None or self.deadline is None or now < plan.deadline:
            return
        waits = self._recovery.incident is not None or self._pause.busy
        if plan.stage is Stage.PAUSING and waits:
            plan.deadline = now + self._job.settings.pause_all  # they pause when that is over
            return
        settings = self._job.settings
        if plan.stage is Stage.PREPARING:
            self._break_off(f"the standbys were not ready within {settings.prepare:.0f} s")
        else:
            limit = settings.pause_all
            self._break_off(f"not all ranks had stopped before the same step within {limit:.0f} s")

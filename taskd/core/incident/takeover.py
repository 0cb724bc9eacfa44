"""Assigns lost and moving nodes to standbys: the part of an incident that needs another agent.

A node is lost when its agent no longer responds, or when it is given up because one of its ranks
cannot be replaced in place. A standby is ordered to take it over; from then on its former agent is
*fenced*: whatever it sends is ignored, and its ranks end. A takeover needs a majority of all
agents, standbys included: the others may be healthy but cut off from us, and do the same under a
manager of their own.

A node that *moves* (nodes/switch.py) is treated like a lost one, except that its agent is fenced
only once the standby's ranks have their state: until then the move can be undone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from taskd.core import commands as c
from taskd.core.incident.state import Incident, Leg, Moving
from taskd.core.job.state import JobState
from taskd.core.job.topology import Node
from taskd.messages import to_agent
from taskd.messages.values import Source


class Takeover:
    def __init__(self, job: JobState) -> None:
        self._job = job

    def broken(self, incident: Incident | None) -> tuple[list[int], list[int]]:
        """Return the living nodes that `recover` gives up, and those that stay. Given up are those
        with a rank that is dead or evicted and cannot be replaced in place, because that is not
        configured, has failed, or its device takes no further process. Of these, a node without
        which the state or a majority would be lost stays, and such a rank is replaced there, unless
        that has failed or the device takes none."""
        failed = incident.failed if incident is not None else ()
        topology = self._job.topology
        ranks = {r for r, s in self._job.ranks.items() if not s.alive} | set(
            incident.evicted if incident is not None else ()
        )
        unusable = {r for r in ranks if self._job.ranks[r].unusable}
        in_place = "recover-in-place" not in failed
        if in_place and "recover-in-place" in self._job.settings.ladder:
            ranks = unusable
        going: list[int] = []
        staying: list[int] = []
        for number in sorted({n for r in ranks if (n := topology.node_of(r)) is not None}):
            node = topology.nodes[number]
            if node.living:
                leave = [topology.nodes[n].agent for n in (*going, number)]
                stays = in_place and unusable.isdisjoint(node.ranks)
                stays = stays and (
                    self.has_last(number, incident, going) or not self._job.majority_without(*leave)
                )
                (staying if stays else going).append(number)
        return going, staying

    def has_last(self, number: int, incident: Incident | None, going: Sequence[int] = ()) -> bool:
        """Whether the job would be lost without this node's memory: no other node but those that
        are `going` has the state of its ranks, keeps its records, or those of a lost node. A node
        that was taken over in this incident has no state yet."""
        topology, node = self._job.topology, self._job.topology.nodes[number]
        others = [i for i, n in topology.nodes.items() if n.living and i not in (number, *going)]
        for replicas in {self._state(rank, incident)[0] for rank in node.ranks}:
            # the first that is found is enough: there may be very many
            there = (self._state(r, incident) for i in others for r in topology.nodes[i].ranks)
            if (replicas, True) not in there:
                return True
        kept = [number] if node.keepers else []
        kept += [i for i, n in topology.nodes.items() if n.lost and number in topology.keepers(i)]
        return any(set(others).isdisjoint(topology.keepers(i)) for i in kept)

    def _state(self, number: int, incident: Incident | None) -> tuple[int, bool]:
        """The replica set of a rank, and whether its process, or its node, has the state."""
        rank = self._job.ranks.get(number)
        if rank is None:
            return 0, False
        stays = rank.alive and (incident is None or number not in incident.new)
        reports = incident.round.reports if incident is not None else {}
        position = reports.get(number) if stays else rank.left
        if position is None:
            return 0, stays
        return position.replica_set, stays or bool(position.stripes)

    def stay(self, number: int) -> None:
        self._job.note(
            f"node {number} stays, since the others have not all of the state, or are no majority:"
            " ranks at fault are replaced there"
        )

    def lose(self, number: int) -> None:
        """Mark the node as lost, and its processes as gone."""
        node = self._job.topology.nodes[number]
        node.lost, node.assignee = True, ""
        for rank in node.ranks:
            if (state := self._job.ranks.get(rank)) is None:
                continue
            state.alive, state.left, state.finished = False, None, None

    def lost_away(self, number: int, why: str) -> None:
        """A node whose ranks are away is lost, and nothing else."""
        self._job.note(f"node {number}, whose ranks are away: {why}")
        self.fence(number, f"node {number} is lost, and the job goes on without it")
        self.keep_records()

    def give_up(self, number: int, why: str) -> None:
        """Stop using a node whose agent is still reachable."""
        self.lose(number)
        self._job.note(f"node {number} is given up: {why}")
        self.fence(number, why, may_wait=True)

    def fence(self, number: int, why: str, may_wait: bool = False) -> None:
        """Exclude the agent that has, or had, the node. `may_wait`: see JobState.fence."""
        node = self._job.topology.nodes[number]
        if node.agent:
            self._job.fence(node.agent, number, why, may_wait=may_wait)
        node.agent = ""
        # lost with the previous manager, which knew its agent
        holder = self._job.election.holder(number)
        if holder and holder not in self._job.fenced:
            self._job.fence(holder, number, why)

    def assign(self, incident: Incident | None) -> None:
        """Assign a standby to every lost node, as far as standbys are available. Without an
        incident, all ranks are restarted once every lost node has an agent."""
        topology = self._job.topology
        for number in topology.lost:
            node = topology.nodes[number]
            if node.assignee:
                continue
            if not topology.away.isdisjoint(node.ranks):
                self._job.note(
                    f"node {number} is not given to a standby: some of its ranks are away"
                )
                continue
            agent = topology.standby_for(number)
            if agent is None:
                self._job.note(f"node {number} waits for a standby")
                continue
            if not self._job.majority():
                reachable, everybody = self._job.reachable()
                self._job.note(
                    f"node {number} is not given to a standby: only {reachable} of"
                    f" {everybody} agents are reachable, no majority"
                )
                continue
            keepers = topology.keepers(number) if incident is not None else ()
            records = tuple(topology.nodes[k].records for k in keepers)
            self.fence(number, reason := f"node {number} is lost")
            self._give(incident, number, agent, records, reason)

    def _give(
        self,
        incident: Incident | None,
        number: int,
        agent: str,
        records: tuple[tuple[str, int], ...],
        reason: str,
        former: str = "",
        nested: tuple[Source, ...] = (),
        own_state: bool = False,
    ) -> None:
        topology = self._job.topology
        node = topology.nodes[number]
        del topology.standbys[agent]
        topology.reserved.pop(agent, None)
        node.assignee = agent
        if incident is not None:
            for rank in node.ranks:
                incident.renew(rank, self._job.ranks[rank])
        self._job.tell_fenced()
        self._job.say(
            to_agent.TakeOver(
                agent=agent,
                node=number,
                ranks=node.ranks,
                incarnations=tuple(self._job.ranks[r].incarnation for r in node.ranks),
                nodes=len(topology.nodes),
                world_size=topology.world_size,
                epoch=node.epoch + 1,
                generation=self._job.generation,
                interruption=self._job.interruption,
                records=records,
                reason=reason,
                former=former,
                restart=incident is None,
                nested=nested,
                own_state=own_state,
            )
        )

    # -- nodes that move ---------------------------------------------------------------------------

    def move(self, incident: Incident) -> None:
        """Give the nodes to the standbys. The agent of a node that moves keeps its processes."""
        moving, job = incident.moving, self._job
        assert moving is not None
        moving.stand_ins, moving.held = dict(job.stand_ins), dict(job.held)
        nodes = job.topology.nodes.items()
        moving.keepers = {i: (node.keepers, node.kept_by) for i, node in nodes}
        self._tell(moving, "begun", moving.why)
        for leg in moving.legs:
            node = job.topology.nodes[leg.node]
            leg.before = replace(node)
            ranks = job.away if moving.grows else job.ranks
            leg.ranks = {r: replace(s, pages=set(s.pages)) for r in node.ranks for s in (ranks[r],)}
            nested = self.sources(node.ranks, leg.assignee)
            records = () if moving.grows else (node.records,)
            if moving.grows:
                job.come_back(node.ranks)
            self.lose(leg.node)
            give = (incident, leg.node, leg.assignee, records, moving.why, node.agent)
            own_state = moving.grows and job.handlers
            self._give(*give, nested=nested, own_state=own_state)
        self.keep_records()

    def moved(self, incident: Incident) -> None:
        """Complete the move: the new ranks have their state, so it is final."""
        moving, incident.moving = incident.moving, None
        assert moving is not None
        moving.done = True
        self._tell(moving, "done", moving.why)
        for leg in moving.legs:
            if leg.before is not None and leg.before.agent:
                why = f"node {leg.node} has moved: {moving.why}"
                self._job.fence(leg.before.agent, leg.node, why, moved=True)

    def put_back(self, incident: Incident, why: str) -> None:
        """Undo the move: each node is as it was before."""
        moving, incident.moving = incident.moving, None
        assert moving is not None
        moving.failed = why
        self._tell(moving, "put back", why)
        for leg in moving.legs:
            if leg.before is not None:
                self._put_back(incident, moving, leg, leg.before, why)
        for number, node in self._job.topology.nodes.items():
            if node.lost:  # perhaps meanwhile: no record has been made since
                node.keepers, node.kept_by = moving.keepers[number]
        self.keep_records()

    def _put_back(
        self, incident: Incident, moving: Moving, leg: Leg, before: Node, why: str
    ) -> None:
        job, topology = self._job, self._job.topology
        topology.nodes[leg.node] = before
        before.keepers_notified = False
        if moving.grows and job.protected:  # else all ranks begin anew, and none is away
            job.go_away(leg.ranks)
            job.away.update(leg.ranks)
            job.stand_ins, job.held = dict(moving.stand_ins), dict(moving.held)
        else:
            job.ranks.update(leg.ranks)
        for rank in leg.ranks:
            incident.undo_renew(rank)
        incident.failures.clear()
        topology.stood_down.add(leg.assignee)
        job.election.stand_down(leg.assignee)
        job.say(to_agent.StandDown(leg.assignee, leg.node, why))
        if leg.former_lost:
            self.lose(leg.node)
            incident.faults.append(f"node {leg.node}: {leg.former_lost}")
        elif before.agent:  # its messages meanwhile were ignored
            job.say(c.AskToRegister((before.agent,)))

    def _tell(self, moving: Moving, state: str, why: str) -> None:
        for leg in moving.legs:
            self._job.journal("move", node=leg.node, agent=leg.assignee, state=state, why=why)

    def sources(self, ranks: Iterable[int], agent: str) -> tuple[Source, ...]:
        """Where the records of ranks that are away are: by node, the ranks that have them in
        theirs. `agent` may take them from there."""
        topology = self._job.topology
        if self._job.handlers:  # such a job has no records
            return ()
        holders: dict[int, set[int]] = {}
        for rank in ranks:
            for holder in self._job.held.get(rank, ()):
                if (number := topology.node_of(holder)) is not None:
                    holders.setdefault(number, set()).add(holder)
        found = []
        for number, held in sorted(holders.items()):
            node = topology.nodes[number]
            # its own agent first, which may just be dying
            at = [*([number] if node.living else ()), *topology.keepers(number)]
            if addresses := tuple(topology.nodes[n].records for n in at):
                found.append((number, tuple(sorted(held)), addresses))
                topology.taking.setdefault(number, set()).add(agent)
        return tuple(found)

    def keep_records(self, only: int | None = None) -> None:
        """Assign every living node, or node `only`, living keepers for its records, if lost nodes
        can be replaced at all."""
        job = self._job
        if not job.settings.survives_nodes or not job.protected or job.closing:
            return
        for number in job.topology.renew_keepers(only):
            keepers = job.topology.nodes[number].keepers
            at = tuple(job.topology.nodes[k].records for k in keepers)
            job.say(to_agent.KeepRecords(number, keepers, at))

"""elastic-training: the replicas that lost a rank leave whole, and the others stand in for them.

Once all ranks have stopped, the lanes that lack one are known (core/elastic.py). Their ranks are
*away* from then on: those that still have a process are killed, since a process cannot catch up
with steps that it has not done. The agents of the ranks that stand in for them take their records
(RESCHEDULE), all ranks build communicators without them, and each stand-in puts the state of those
that it stands in for in place with its own.

What a rank that is away would have recorded is nested in its stand-in's record from then on. If
that one goes away too, its record has both.
"""

from __future__ import annotations

from collections.abc import Mapping

from taskd.core.abbreviate import abbreviate
from taskd.core.elastic import Lanes, NotElastic, shares
from taskd.core.incident.phases import Move
from taskd.core.incident.rounds import Next
from taskd.core.incident.state import Incident
from taskd.core.incident.takeover import Takeover
from taskd.core.state import JobState
from taskd.messages import from_agent, to_agent


class Elastic:
    def __init__(self, job: JobState, nodes: Takeover) -> None:
        self._job, self._nodes = job, nodes

    def leave(self, incident: Incident) -> Next:
        """All ranks have stopped: the lanes without one leave, and the others stand in for them.
        Returns the move if that cannot be."""
        job, round_ = self._job, incident.round
        gone = {r for r, s in job.ranks.items() if not s.alive}
        gone |= incident.new | set(incident.evicted)
        try:
            self._refuse(gone)
            lanes = Lanes.of(round_.reports, job.topology.world_size)
            away = {r for n in lanes.broken(gone | job.away.keys()) for r in lanes.lane(n)}
            stand_ins = lanes.stand_ins(away, job.stand_ins)
        except NotElastic as why:
            return Move.SPENT, str(why)
        job.lanes = lanes
        self._go_away(incident, away - job.away.keys())
        round_.stand_ins = stand_ins
        new = {r: s for r, s in stand_ins.items() if job.stand_ins.get(r) != s}
        round_.taking = self._take_records(new)
        return None

    def _refuse(self, gone: set[int]) -> None:
        """Raise NotElastic if it is known already that the job cannot go on without `gone`."""
        job = self._job
        if job.handlers:
            raise NotElastic("the framework copies its own state, and does not stand in for ranks")
        if gone and (why := job.outnumbered):
            raise NotElastic(why)

    def _go_away(self, incident: Incident, leaving: set[int]) -> None:
        job, topology = self._job, self._job.topology
        if not leaving:
            return
        why = f"its replica of the state has left: {incident.faults[-1]}"
        for rank in sorted(leaving):
            state = job.ranks[rank]
            if state.alive and not topology.is_lost(rank):
                job.say(to_agent.Kill(rank, state.incarnation, why))
        incident.forget(tuple(leaving))
        job.go_away(leaving)
        job.note(f"ranks [{abbreviate(sorted(leaving))}] leave, others stand in for them")
        for number, node in topology.nodes.items():
            if node.lost and topology.gone(node) and not leaving.isdisjoint(node.ranks):
                why = f"node {number} is lost, and the job goes on without it"
                if node.assignee:  # a standby that is still taking it over
                    job.fence(node.assignee, number, why)
                    node.assignee = ""
                self._nodes.fence(number, why)

    def _take_records(self, new: Mapping[int, int]) -> set[int]:
        """Have the nodes of the stand-ins take the records of the ranks they stand in for; return
        the nodes. `new`: those whose state no stand-in has yet."""
        job, topology = self._job, self._job.topology
        by_node: dict[int, list[int]] = {}
        for rank, stand_in in new.items():
            node = topology.node_of(stand_in)
            assert node is not None  # it has just reported
            by_node.setdefault(node, []).append(rank)
        for number, ranks in sorted(by_node.items()):
            sources = self._nodes.sources(ranks)
            for source, _, _ in sources:
                topology.taking.setdefault(source, set()).add(topology.nodes[number].agent)
            job.say(to_agent.TakeRecords(number, job.interruption, tuple(sorted(ranks)), sources))
        return set(by_node)

    def took(self, incident: Incident, event: from_agent.RecordsTaken) -> None:
        """A node has the records that it was told to take."""
        incident.round.taking.discard(event.node)
        incident.round.taken.update(zip(event.away, event.left, strict=False))

    def resumed(self, incident: Incident) -> None:
        """All ranks resume: who stands in for whom is final."""
        job, stand_ins = self._job, incident.round.stand_ins
        if stand_ins is None:
            return
        before, job.stand_ins = job.stand_ins, stand_ins
        for rank, stand_in in stand_ins.items():
            if before.get(rank) != stand_in:
                job.held[rank] = (*job.held[rank], stand_in)
        self.tell()

    def tell(self) -> None:
        """Say how the job goes on."""
        job = self._job
        if not job.stand_ins:
            return
        most = shares(job.stand_ins, job.ranks)
        job.note(
            f"{len(job.ranks)} of {job.topology.world_size} ranks train, with the same global"
            f" batch: ranks [{abbreviate(sorted(job.away))}] are away, and a step takes up to"
            f" {most} times as long",
            journaled=True,
        )
        job.journal(
            "elastic",
            ranks=len(job.ranks),
            of=job.topology.world_size,
            away=sorted(job.away),
            shares=most,
        )

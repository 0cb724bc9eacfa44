"""elastic-training: the replicas that lost a rank leave whole, and the others stand in for them.

Once all ranks have stopped, the lanes that lack one are known (core/job/elastic.py). Their ranks
are *away* from then on: those that still have a process are killed, since a process cannot catch up
with steps that it has not done. The agents of the ranks that stand in for them take their records
(RESCHEDULE), all ranks build communicators without them, and each stand-in puts the state of those
that it stands in for in place with its own.

What a rank that is away would have recorded is nested in its stand-in's record from then on. If
that one goes away too, its record has both.

A framework that copies its own state (taskd/adaptor/mindio) has no such records: given who is left,
it forms its groups anew and spreads the micro-batches itself. It does so once until all ranks are
back, and a fault meanwhile is not repaired (Damage.shrunk).
"""

from __future__ import annotations

from collections.abc import Mapping

from taskd.core.abbreviate import abbreviate
from taskd.core.election.election import STANDBY
from taskd.core.incident import optimizer_replicas
from taskd.core.incident.phases import Move
from taskd.core.incident.rounds import Next
from taskd.core.incident.state import Incident
from taskd.core.incident.takeover import Takeover
from taskd.core.job.elastic import Lanes, NotElastic, shares
from taskd.core.job.ladder import ELASTIC
from taskd.core.job.state import JobState
from taskd.messages import from_agent, to_agent
from taskd.messages.values import Spans

SPANS = 1000  # of ranks in an entry of the journal: a lane is a few spans in any known layout


class Elastic:
    def __init__(self, job: JobState, nodes: Takeover) -> None:
        self._job, self._nodes = job, nodes
        self._told = False
        # since when so many ranks train, by the clock of the job; None: since an earlier manager
        self.since: float | None = None
        self.shares = 0  # of a step that one rank computes, at most; 0: not known yet
        # the number of the last incident in which ranks left, and of these the ones at fault
        self._lost: tuple[int, frozenset[int]] = (0, frozenset())
        self._idle: set[int] = set()  # nodes whose ranks have left, all because of others

    def lost(self, incident: Incident) -> frozenset[int]:
        """The ranks at fault that have left in this incident."""
        number, ranks = self._lost
        return ranks if number == incident.number else frozenset()

    def refusal(self, incident: Incident | None) -> str:
        """Why the job cannot go on without the ranks that it lacks, as far as that is known before
        all ranks have stopped; "" if it can."""
        try:
            if incident is None:
                self._refuse(set())
            else:
                self._split(incident)
        except NotElastic as why:
            return str(why)
        return ""

    def leave(self, incident: Incident) -> Next:
        """All ranks have stopped: the lanes without one leave, and the others stand in for them.
        Returns the move if that cannot be."""
        job, round_ = self._job, incident.round
        # in an earlier round ranks may have left without anybody standing in for them yet
        settled = job.stand_ins.keys() == job.away.keys()
        if settled and not self._gone(incident):  # only connections have failed
            return None
        try:
            lanes, gone, stand_ins = self._split(incident)
        except NotElastic as why:
            return Move.SPENT, str(why)
        # ranks of a framework that copies its own state come back all together
        job.lanes = None if job.handlers else lanes
        away = stand_ins.keys()
        self._lost = incident.number, self.lost(incident) | gone
        leaving = away - job.away.keys()
        self._idle |= {
            number
            for number, node in job.topology.nodes.items()
            if leaving.issuperset(node.ranks) and gone.isdisjoint(node.ranks)
        }
        self._go_away(incident, leaving)
        round_.stand_ins = stand_ins
        if not job.handlers:
            new = {r: s for r, s in stand_ins.items() if job.stand_ins.get(r) != s}
            round_.taking = self._take_records(new)
        return None

    def _gone(self, incident: Incident) -> set[int]:
        """The ranks without a process that can be kept."""
        gone = {r for r, s in self._job.ranks.items() if not s.alive}
        return gone | incident.new | set(incident.evicted)

    def _split(self, incident: Incident) -> tuple[Lanes, set[int], dict[int, int]]:
        """The lanes, the ranks that the job lacks, and who would stand in for all that leave.
        Raises NotElastic."""
        job, gone = self._job, self._gone(incident)
        self._refuse(gone)
        lanes = Lanes.of(incident.round.reports, job.topology.world_size)
        away = {r for n in lanes.broken(gone | job.away.keys()) for r in lanes.lane(n)}
        stand_ins = lanes.stand_ins(away, job.stand_ins)
        if job.handlers:
            reports = incident.round.reports
            staying = {r: reports.get(r) for r in job.ranks if r not in away}
            if why := optimizer_replicas.lacking(staying, job.optimizers):
                raise NotElastic(why)
        return lanes, gone, stand_ins

    def _refuse(self, gone: set[int]) -> None:
        """Raise NotElastic if it is known already that the job cannot go on without `gone`."""
        job = self._job
        if job.load is not None:
            raise NotElastic(f"all ranks have to load {job.load.which}")
        if gone and (why := job.deserted):
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
            sources = self._nodes.sources(ranks, topology.nodes[number].agent)
            job.say(to_agent.TakeRecords(number, job.interruption, tuple(sorted(ranks)), sources))
        return set(by_node)

    def took(self, incident: Incident, event: from_agent.RecordsTaken) -> None:
        """A node has the records that it was to take, or cannot have them."""
        incident.round.taking.discard(event.node)
        if event.why:
            what = f"the records of ranks [{abbreviate(event.away)}], which leave"
            incident.round.untaken = f"node {event.node} could not take {what}: {event.why}"
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
        if stand_ins != before:
            self.tell()

    def free_idle(self) -> None:
        """The job trains on without these nodes, which have nothing wrong: they become standbys."""
        job, topology = self._job, self._job.topology
        idle, self._idle = sorted(self._idle), set()
        if job.settings.advisor != "off":
            return  # it replaces the nodes' pods itself
        for number in idle:
            node = topology.nodes[number]
            if not node.living or not topology.gone(node):
                continue
            agent, node.agent, node.lost = node.agent, "", True
            topology.stood_down.add(agent)
            job.election.arrive(agent, STANDBY, ("", 0))
            job.note(f"node {number} has no ranks any longer: its launcher becomes a standby")
            why = "its replica of the state has left, and it may take any node's place"
            job.say(to_agent.StandDown(agent, number, why))
        if idle:
            self._nodes.keep_records()

    @property
    def words(self) -> str:
        """How the job goes on."""
        job = self._job
        if not job.away:
            return f"all {job.topology.world_size} ranks train again"
        longer = f", and a step takes up to {self.shares} times as long" if self.shares else ""
        return (
            f"{len(job.ranks)} of {job.topology.world_size} ranks train, with the same global"
            f" batch: ranks [{abbreviate(sorted(job.away))}] are away{longer}"
        )

    def tell(self, successor: bool = False) -> None:
        """Say how the job goes on. `successor`: as it did under an earlier manager."""
        job = self._job
        self._told, self.since = True, None if successor else job.at
        self.shares = shares(job.stand_ins, job.ranks)
        if job.away or not successor:
            job.note(self.words, journaled=True)
        job.journal(
            "elastic",
            ranks=len(job.ranks),
            of=job.topology.world_size,
            away=Spans.of(sorted(job.away)).spans[:SPANS],
            shares=self.shares,
            successor=successor,
        )

    def take_over(self) -> None:
        """The job trains: say how it goes on, if an earlier manager may have changed that. It may
        have been lost before it could say that all ranks are back."""
        if self._told:
            return
        job, self._told = self._job, True
        later = job.election.candidate.successor or job.election.candidate.term > 1
        if job.away or (later and ELASTIC in job.settings.ladder):
            self.tell(successor=True)

"""Nodes that ClusterD takes out of service: `preExitProcess` ends processes on faulty hardware,
`fault_nodes_exit` and `exit` with nodes end their pods.

ClusterD sends `preExitProcess` once for each hardware fault that a repetition of the step cannot
repair, under an id of its own and in any state, and begins nothing by that: it waits for the
report that the processes are gone. It drops what is reported between the strategy that it has named
and the end of that repair. So what it has condemned is reported with each stream of signals until
it has ended its pod or named a strategy for it.
"""

from __future__ import annotations

from collections.abc import Iterable

from taskd.core import events as e
from taskd.core.abbreviate import abbreviate
from taskd.core.advice import Advice
from taskd.core.coordinator import Coordinator
from taskd.core.incident.phases import Phase
from taskd.messages import from_agent, to_agent
from taskd.messages.from_rank import OTHER
from taskd.mindcluster.clusterd.deciding.reports import RESTARTED, Reports


class Nodes:
    def __init__(self, parts: Coordinator, advice: Advice, reports: Reports) -> None:
        self._job, self._topology = parts.job, parts.job.topology
        self._recovery, self._pods = parts.recovery, parts.pods
        self._advice, self._reports = advice, reports
        self._settled: set[int] = set()  # nodes given up, or kept, under this uuid
        self._later: set[int] = set()  # nodes that leave once enough others are there
        # names nodes that are to leave once the strategy is known
        self._leaving: e.AdvisorSignal | None = None
        self._certain: set[int] = set()  # nodes of which it has named ranks that it had condemned
        # rank on faulty hardware, of which ClusterD has not said what becomes -> its node's agent
        self._condemned: dict[int, str] = {}
        self._heard: set[str] = set()  # agents that have reported what an earlier manager knew
        # of these, the ranks whose process has yet to be ended, and why
        self._to_end: dict[int, str] = {}

    def begin(self) -> None:
        """ClusterD begins to handle a fault."""
        self._settled.clear()
        self._later.clear()
        self._certain.clear()
        self._leaving = None

    @property
    def condemned(self) -> dict[int, int]:
        """The ranks whose hardware has failed, as faults, as long as ClusterD leaves them there."""
        for rank, agent in list(self._condemned.items()):
            if self._agent(rank) not in (agent, ""):  # without an agent: it is given up already
                del self._condemned[rank]
        return dict.fromkeys(self._condemned, OTHER)

    def condemns(self, event: e.AdvisorSignal) -> bool:
        """Whether these nodes have ranks on faulty hardware."""
        nodes = {self._topology.node_of(rank) for rank in self.condemned}
        return not nodes.isdisjoint(event.nodes)

    def named(self, event: e.AdvisorSignal) -> None:
        """ClusterD says what becomes of these ranks and nodes: `globalFault` of those whose pods it
        ends. It may begin anew before it has named a strategy for the others."""
        named, nodes = {rank for rank, _ in event.ranks}, event.nodes
        if event.kind == "globalFault":
            named, nodes = set(), nodes if "fault_nodes_exit" in event.actions else ()
        for rank in list(self._condemned):
            number = self._topology.node_of(rank)
            if number is not None and (rank in named or number in nodes):
                del self._condemned[rank]
                self._certain.add(number)
        if event.kind != "globalFault":  # after which a strategy is to come
            self._keep(self._certain & self._topology.nodes.keys())

    def _keep(self, nodes: Iterable[int]) -> None:
        """Have the agents of these nodes remember it for the next manager: ClusterD does not say it
        again."""
        for number in sorted(nodes):
            ranks = self._topology.nodes[number].ranks
            known = tuple(r for r in ranks if r in self._condemned)
            self._job.say(to_agent.KeepCondemned(number, known))

    def recall(self, event: from_agent.AgentJoined) -> None:
        """An agent says what an earlier manager knew; later it may not have heard yet what this one
        has sent."""
        if event.agent not in self._heard:
            self._heard.add(event.agent)
            self._condemned |= dict.fromkeys(event.condemned, event.agent)

    def end_processes(self, event: e.AdvisorSignal, now: float, waits: bool) -> None:
        """Hardware of these nodes has failed: end the processes on it, those of all its ranks if
        none are named. `waits`: see Advice.consult."""
        nodes = self._concerned(event)
        for number in nodes:
            if self._topology.gone(self._topology.nodes[number]):  # nothing trains there
                self._recovery.give_up(number, "ClusterD reports a fault of its hardware", now)
        named = {rank for rank, _ in event.ranks}
        there = [r for n in nodes for r in self._topology.nodes[n].ranks if r in self._job.ranks]
        ranks = [r for r in there if not named or r in named]
        if not ranks:
            return
        text = f"ClusterD reports a hardware fault of nodes {nodes}"
        if len(ranks) < sum(len(self._topology.nodes[n].ranks) for n in nodes):
            text += f", ranks [{abbreviate(ranks)}]"
        self._condemned |= {rank: self._agent(rank) for rank in ranks}
        self._keep(nodes)
        self._to_end |= dict.fromkeys(ranks, text)
        self.end(now, waits)

    @property
    def due(self) -> bool:
        """Whether condemned processes can be ended now: not before every rank is protected."""
        return bool(self._to_end) and self._job.protected and not self._job.closing

    def end(self, now: float, waits: bool) -> None:
        """End the condemned processes that are still there. `waits`: see Advice.consult."""
        if not self.due:
            return
        incident, condemned = self._recovery.incident, self.condemned
        handled = {*incident.new, *incident.evicted} if incident is not None else set()
        alive = {
            rank: text
            for rank, text in self._to_end.items()
            if rank in condemned
            and rank not in handled
            and (state := self._job.ranks.get(rank)) is not None
            and state.alive
        }
        self._to_end.clear()
        if alive:
            self._advice.consult("; ".join(dict.fromkeys(alive.values())), now, alive, waits)

    def drop(self) -> None:
        """All processes are gone, or about to end."""
        self._to_end.clear()

    def will_leave(self, event: e.AdvisorSignal) -> None:
        """These nodes leave with the strategy: before it is known they may be the last to have the
        state that it saves."""
        self._leaving = event

    @property
    def leaving(self) -> set[int]:
        """The ranks of these nodes."""
        known = self._topology.nodes
        named = self._leaving.nodes if self._leaving is not None else ()
        return {rank for n in named if n in known for rank in known[n].ranks}

    def decided(self, now: float) -> None:
        """The job goes on, by ClusterD's strategy or without one."""
        event, self._leaving = self._leaving, None
        if event is not None:
            self.leave(event, now)

    def stay(self) -> None:
        """The job ends: those that were to leave save its state."""
        self._leaving = None
        self._later.clear()

    def leave(self, event: e.AdvisorSignal, now: float) -> None:
        """Give these nodes up, but the last that have their state."""
        # first those whose hardware is known to have failed
        for number in sorted(self._concerned(event), key=lambda n: n not in self._certain):
            if number in self._settled or self._repaired(number, now):
                continue
            if self._has_last(number):
                self._settled.add(number)
                self._recovery.nodes.stay(number)
            elif not self._job.majority_without(self._topology.nodes[number].agent):
                self._job.note(f"node {number} stays until enough others are back for a majority")
                self._later.add(number)
            else:
                self._give_up(number, now)

    def leave_later(self, now: float) -> None:
        """Give up those that had to stay, once they need not any more."""
        for number in sorted(self._later):
            node = self._topology.nodes[number]
            if self._recovery.phase in (None, Phase.RESUME) or not node.living:
                self._later.discard(number)  # it is repaired where it is
            elif self._job.majority_without(node.agent) and not self._has_last(number):
                self._give_up(number, now)

    def _give_up(self, number: int, now: float) -> None:
        self._later.discard(number)
        self._settled.add(number)
        self._recovery.give_up(number, "ClusterD replaces its pod", now)

    def _has_last(self, number: int) -> bool:
        return self._recovery.nodes.has_last(number, self._recovery.incident)

    def _repaired(self, number: int, now: float) -> bool:
        """Whether ClusterD means a fault that is repaired."""
        ranks = set(self._topology.nodes[number].ranks)
        repaired = not ranks.isdisjoint(self._reports.settled(now)) and ranks.isdisjoint(
            self.at_fault
        )
        return repaired and number not in self._certain

    def known(self, now: float) -> set[int]:
        """The ranks whose fault is handled, or repaired: ClusterD's word of them is no news."""
        incident = self._recovery.incident
        replaced = set(incident.replaced) if incident is not None else set()
        return self._reports.known | replaced | (self._reports.stale(now) - self.at_fault)

    @property
    def at_fault(self) -> set[int]:
        """The ranks that have a fault now, as far as anybody knows."""
        return {*(rank for rank, _ in self._advice.faulty()), *self.condemned}

    def replace(self, event: e.AdvisorSignal, now: float) -> str:
        """End the pods of these nodes, and start all ranks again with the next ones. Returns the
        result; "" if the job ends: no other node stays to start again, or none would begin at the
        right step."""
        known = self._topology.nodes
        named = sorted(set(event.nodes) & known.keys())
        nodes = [n for n in named if not self._reports.replaced(n)]
        if named and not nodes:
            return "other agents have these nodes already, and the ranks train on"
        if not nodes or len(nodes) == len(known):
            return ""
        self._pods.replace(nodes, f"ClusterD ends the pods of nodes [{abbreviate(nodes)}]", now)
        return "" if self._job.over else f"{RESTARTED} once the next pods have come"

    def _concerned(self, event: e.AdvisorSignal) -> list[int]:
        """The nodes named whose agents ClusterD means."""
        known = self._topology.nodes
        living = [n for n in event.nodes if n in known and known[n].living]
        if others := [n for n in living if self._reports.replaced(n)]:
            what = f"other agents have nodes [{abbreviate(others)}] already"
            self._job.note(f"ClusterD's signal {event.kind} is ignored there: {what}")
        return [n for n in living if n not in others]

    def _agent(self, rank: int) -> str:
        number = self._topology.node_of(rank)
        return "" if number is None else self._topology.nodes[number].agent

"""Reports that ClusterD waits for, and what it already knows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

from taskd.core import commands as c
from taskd.core import events as e
from taskd.core.abbreviate import abbreviate
from taskd.core.advice import Advice
from taskd.core.job.state import JobState
from taskd.messages.from_rank import OTHER

# codes of reports. With ISOLATED the result is still to come. After NEXT ClusterD names another
# strategy for the same fault; after FAILED, one that ends the job.
OK, ISOLATED, NOT_READY, NEXT, FAILED = 0, 201, 404, 405, 406
RESTARTED = "all ranks start again"
# seconds after a repair in which ClusterD may name its ranks again: it keeps a report for 10 s, and
# a handling that begins then takes up to 35
STALE = 60.0


class Owed(Enum):
    """A report that ClusterD waits for."""

    STOPPED = "all ranks have stopped, for a repair"
    PAUSED = "all ranks have paused before a step"
    ABLE = "which strategies fit"
    MOVABLE = "a standby is ready"


CALLS = {
    Owed.STOPPED: "ReportStopComplete",
    Owed.PAUSED: "ReportStopComplete",
    Owed.ABLE: "ReportRecoverStrategy",
    Owed.MOVABLE: "ReportRecoverStrategy",
}


class Reports:
    def __init__(self, job: JobState, advice: Advice) -> None:
        self._job, self._advice = job, advice
        self.owed: set[Owed] = set()
        self.told: dict[int, int] = {}  # the ranks at fault, with their types, that it knows of
        self.known: set[int] = set()  # ranks whose fault is handled here: its word is no news
        self._agents: dict[int, str] = {}  # their nodes' agents at the time of the fault
        # nodes that had another agent when ClusterD began anew, in this incident
        self.spared: set[int] = set()
        self._handling = False  # ClusterD handles a fault
        self.restarted = False  # all ranks, since the last report of a fault
        self._reported: dict[int, int] = {}  # faults, by rank, since ClusterD has begun anew
        self._repaired: dict[int, float] = {}  # ranks whose fault is repaired, and when
        # ranks that ClusterD names under the present uuid, with the worst type of their faults
        self.named: dict[int, int] = {}
        self._reported_at: float | None = None  # when, of a fault that it has not begun to handle

    def forget(self) -> None:
        """ClusterD begins anew."""
        self.owed.clear()
        self.told.clear()
        self._reported.clear()
        self.named.clear()
        self.known.clear()
        self._reported_at, self._handling = None, False
        self.spared = {number for number in self._agents if self.replaced(number)}
        self._agents = {number: self._agents[number] for number in self.spared}

    def spare_none(self) -> None:
        """The incident in which nodes were replaced is over: an order for them is for those that
        have them now."""
        for number in self.spared:
            self._agents.pop(number, None)
        self.spared.clear()

    def hears(self, event: e.AdvisorSignal) -> None:
        """What ClusterD says itself it knows."""
        for rank, kind in event.ranks:
            for names in (self.named, self.told):
                if names.get(rank) != OTHER:
                    names[rank] = kind
        for number in event.nodes:
            if (node := self._job.topology.nodes.get(number)) is not None:
                self.told.update(dict.fromkeys(node.ranks, OTHER))
                self.named.update(dict.fromkeys(node.ranks, OTHER))

    def handled(self, faults: Mapping[int, int]) -> None:
        """Faults other than these are repaired: the next ones of the same ranks are news."""
        if len(self.told) > len(faults):
            self.told = {rank: kind for rank, kind in self.told.items() if rank in faults}
        if len(self._reported) > len(faults):
            self._reported = {r: kind for r, kind in self._reported.items() if r in faults}

    def repaired(self, ranks: Iterable[int], now: float) -> None:
        """The faults of these ranks are repaired. ClusterD names them once more: it keeps a
        report for ten seconds, beyond the end of its handling."""
        self._repaired.update(dict.fromkeys(ranks, now))

    def knows(self, event: e.AdvisorSignal) -> bool:
        """Whether it names nothing but what is handled here."""
        return not event.nodes and self.known.issuperset(rank for rank, _ in event.ranks)

    def stale(self, now: float) -> set[int]:
        """The ranks that ClusterD may still name for a fault that is repaired."""
        return {rank for rank, at in self._repaired.items() if now < at + STALE}

    def settled(self, now: float) -> set[int]:
        """The ranks whose fault is handled or repaired here."""
        return self.known | self.stale(now)

    def repeat(self, event: e.AdvisorSignal) -> None:
        """Report again what ClusterD's signal lacks, before it is answered: a report that comes
        while it begins anew begins its handling, but its ranks are lost to it; what it remembers of
        them may be an earlier fault."""
        heard = dict(event.ranks)
        if lost := {r: k for r, k in self._reported.items() if heard.get(r) not in (k, OTHER)}:
            self._job.note(f"ClusterD has lost the fault of ranks [{abbreviate(sorted(lost))}]")
            self.report("ReportProcessFault", ranks=tuple(sorted(lost.items())))

    def taken_up(self, now: float) -> bool:
        """ClusterD begins to handle a fault. Returns whether it is one that was reported to it; it
        handles those within seconds, or not at all."""
        reported, self._reported_at = self._reported_at, None
        recently = reported is not None and now < reported + self._job.settings.advice
        if not recently:
            self._clear()
        self._handling = True
        return recently

    def expire(self, repaired: float) -> None:
        """Forget a report that ClusterD has not begun to handle in time. `repaired`: until when all
        earlier faults were."""
        reported, limit = self._reported_at, self._job.settings.advice
        if reported is not None and repaired >= reported + limit:
            self._reported_at = None
            if not self._handling:
                self._clear()

    def replaced(self, node: int) -> bool:
        """Whether the node has, or soon has, another agent than when its ranks were reported to
        ClusterD."""
        found = self._job.topology.nodes[node]
        present = found.agent or found.assignee
        return bool(present) and self._agents.get(node, present) != present

    def fault(self, ranks: Mapping[int, int], now: float) -> None:
        """Report faults, by rank, unless ClusterD knows of each. It reads ranks from this report
        alone: those beside other reports are for its log."""
        if all(self.told.get(rank) == kind for rank, kind in ranks.items()):
            return
        if self._reported_at is None and not self._handling:
            self._clear()
        self._reported_at = now
        self._remember(ranks)
        self.told.update(ranks)
        self._reported.update(ranks)
        self.restarted = False
        self.report("ReportProcessFault", ranks=tuple(sorted(ranks.items())))

    def pay(
        self, owed: Owed, code: int = OK, text: str = "", strategies: tuple[str, ...] = ()
    ) -> None:
        """Make the report, if ClusterD waits for it."""
        if owed in self.owed:
            self.send(owed, code, text, strategies)

    def send(self, owed: Owed, code: int, text: str, strategies: tuple[str, ...] = ()) -> None:
        self.owed.discard(owed)
        faulty = self._advice.faulty()
        self._remember(rank for rank, _ in faulty)
        self.report(CALLS[owed], code, text, ranks=faulty, strategies=strategies)

    def report(
        self,
        call: str,
        code: int = OK,
        text: str = "",
        ranks: tuple[tuple[int, int], ...] = (),
        strategies: tuple[str, ...] = (),
        strategy: str = "",
    ) -> None:
        self._job.say(c.TellAdvisor(call, code, text, ranks, strategies, strategy))

    def _clear(self) -> None:
        self.known.clear()
        self._agents = {n: agent for n, agent in self._agents.items() if n in self.spared}

    def _remember(self, ranks: Iterable[int]) -> None:
        """Remember the faulty ranks: ClusterD's reports of them are not news."""
        for rank in ranks:
            self.known.add(rank)
            if (number := self._job.topology.node_of(rank)) is not None:
                self._agents.setdefault(number, self._job.topology.nodes[number].agent)

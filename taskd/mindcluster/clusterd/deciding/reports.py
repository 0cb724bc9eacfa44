"""Reports that ClusterD waits for, and what it already knows."""

from __future__ import annotations

from enum import Enum

from taskd.core import commands as c
from taskd.core.advice import Advice
from taskd.core.state import JobState

# codes of reports. After NEXT ClusterD names another strategy for the same fault; after FAILED,
# one that ends the job.
OK, NOT_READY, NEXT, FAILED = 0, 404, 405, 406


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
        self.known: set[int] = set()  # the ranks at fault that ClusterD knows from here
        self._agents: dict[int, str] = {}  # their nodes' agents at that time
        self._reported_at: float | None = None  # when, of a fault that it has not begun to handle

    def forget(self) -> None:
        """ClusterD begins anew."""
        self.owed.clear()
        self._clear()
        self._reported_at = None

    def taken_up(self, now: float) -> bool:
        """ClusterD begins to handle a fault. Returns whether it is one that was reported to it; it
        handles those within seconds, or not at all."""
        reported, self._reported_at = self._reported_at, None
        recently = reported is not None and now < reported + self._job.settings.advice
        if not recently:
            self._clear()
        return recently

    def replaced(self, node: int) -> bool:
        """Whether the node has another agent than when its ranks were reported to ClusterD."""
        present = self._job.topology.nodes[node].agent
        return self._agents.get(node, present) != present

    def fault(self, now: float) -> None:
        """Report a fault that was found here."""
        if self._reported_at is None:
            self._clear()
        self._reported_at = now
        self._remember()
        self.report("ReportProcessFault", ranks=self._advice.faulty())

    def pay(
        self, owed: Owed, code: int = OK, text: str = "", strategies: tuple[str, ...] = ()
    ) -> None:
        """Make the report, if ClusterD waits for it."""
        if owed in self.owed:
            self.send(owed, code, text, strategies)

    def send(self, owed: Owed, code: int, text: str, strategies: tuple[str, ...] = ()) -> None:
        self.owed.discard(owed)
        self._remember()
        self.report(CALLS[owed], code, text, ranks=self._advice.faulty(), strategies=strategies)

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
        self._agents.clear()

    def _remember(self) -> None:
        """Remember the faulty ranks: ClusterD's reports of them are not news."""
        for rank, _ in self._advice.faulty():
            self.known.add(rank)
            if (number := self._job.topology.node_of(rank)) is not None:
                self._agents.setdefault(number, self._job.topology.nodes[number].agent)

"""ClusterD's orders to save and to end the job (`dump`, `exit`, `killMaster`), and which of them
are not carried out: ClusterD gives a job up whose fault it has lost, still has when it is repaired,
or cannot handle. What is known here decides then."""

from __future__ import annotations

from taskd.core import events as e
from taskd.core.advice import Advice
from taskd.core.coordinator import Coordinator
from taskd.core.incident.phases import Phase
from taskd.messages.from_rank import OTHER
from taskd.mindcluster.clusterd.deciding.nodes import Nodes
from taskd.mindcluster.clusterd.deciding.reports import FAILED, OK, Owed, Reports


class Ends:
    def __init__(self, parts: Coordinator, advice: Advice, reports: Reports, nodes: Nodes) -> None:
        self._job, self._recovery = parts.job, parts.recovery
        self._advice, self._reports, self._nodes = advice, reports, nodes
        # of the fault whose further orders are answered only, and why
        self._uuid, self._why = "", ""

    def void(self, uuid: str, why: str) -> None:
        """Orders about this fault are only answered from now on: all ranks were restarted, the job
        has not grown, or ending it would be pointless."""
        self._uuid, self._why = uuid, why

    def is_void(self, uuid: str) -> bool:
        return bool(uuid) and uuid == self._uuid

    def renamed(self, uuid: str, to: str) -> None:
        if self.is_void(uuid):
            self._uuid = to

    def answer(self, event: e.AdvisorSignal) -> bool:
        """Answer an order about it. Returns whether ClusterD has handled the fault with that."""
        if event.kind == "globalFault":
            self._reports.send(Owed.ABLE, OK, self._why, ("exit",))
            return False
        code = OK if event.strategy in ("exit", "continue") else FAILED
        self._job.note(f"ClusterD's strategy {event.strategy} is not carried out: {self._why}")
        self._reports.report("ReportRecoverStatus", code, self._why, strategy=event.strategy)
        return code == OK

    def pointless(self, event: e.AdvisorSignal, now: float) -> str:
        """Why the strategy is not carried out; "" if it is."""
        ends = event.strategy in ("dump", "exit") and self._job.protected
        if not ends or self._job.closing or self._advice.saves:
            return ""
        named, kinds = self._reports.named, dict(self._advice.faulty())
        if not named:
            return "ClusterD names no rank that is at fault"
        # of memory, as it remembers, where the process is gone by now
        means = {r for r, k in named.items() if k == OTHER or kinds.get(r, k) != OTHER}
        at_fault = self._nodes.at_fault
        if means.isdisjoint(at_fault) and named.keys() <= self._reports.settled(now):
            return "what ClusterD names is repaired, or is another fault by now"
        return ""

    def kill(self, event: e.AdvisorSignal, now: float) -> None:
        """ClusterD gives the job up: it has failed itself, or waits for a pod that does not come,
        or for ranks that do not begin."""
        waits = self._recovery.phase is Phase.RESCHEDULE
        if not self._job.protected or self._job.closing or waits:
            self._job.give_up("ClusterD orders it, and schedules it again (killMaster)")
        else:
            self.go_on("killMaster", now)

    def go_on(self, order: str, now: float) -> None:
        """The order is not carried out."""
        state = "trains" if self._recovery.incident is None else "is repaired by what is known here"
        self._job.note(
            f"ClusterD's order {order} is not carried out: the job {state}. Where ClusterD gives up"
            " each fault, its ConfigMap reset-config-JOB may be missing (docs/clusterd.md)"
        )
        self._nodes.stay()
        self._recovery.alone("ClusterD has given up", now)

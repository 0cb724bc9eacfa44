"""A node that ClusterD has moved: whether a standby is ready for it, and whether it has moved.

ClusterD waits for both answers, minutes each, and ends the job without them: every way in which a
move can fail is answered.
"""

from __future__ import annotations

from taskd.core import events as e
from taskd.core.job.state import JobState
from taskd.core.nodes.switch import Switch
from taskd.messages import from_operator
from taskd.mindcluster.clusterd.deciding.reports import FAILED, OK, Owed, Reports

WORD = "migration"  # the strategy's name


class HotSwitch:
    def __init__(self, job: JobState, switch: Switch, reports: Reports) -> None:
        self._job, self._switch, self._reports = job, switch, reports
        self._moving: tuple[int, str] | None = None  # the node, and its agent before the move
        self._ordered = False  # ClusterD waits for the result
        self._over = False  # it has the result

    def forget(self) -> None:
        self._moving, self._ordered, self._over = None, False, False

    def report(self, event: e.AdvisorSignal, now: float) -> None:
        """A node is sub-healthy: the node of the first rank named, as ClusterD moves one at a
        time."""
        if "hot switch" not in event.actions:
            return  # "new pod running" is seen from its agent, "stop switch" from its absence
        node = self._job.topology.node_of(event.ranks[0][0]) if event.ranks else None
        if node is None:
            self._reports.send(Owed.MOVABLE, OK, "it names no node of this job", ("exit",))
            return
        if self._moving is not None and self._moving[0] == node and self._switch.moves(node):
            self._reports.owed.add(Owed.MOVABLE)  # it comes twice, or again after another fault
            return
        refusal = self._switch.refusal(node)
        agent = self._job.topology.nodes[node].agent
        self._switch.reported(from_operator.NodeSubHealthy("", node, "ClusterD reports it"), now)
        if not refusal and not self._switch.moves(node):
            refusal = f"a sub-healthy node does not move here ({self._job.sub_healthy})"
        if refusal:
            self._reports.send(Owed.MOVABLE, OK, refusal, ("exit",))
            return
        self._moving, self._over = (node, agent), False
        self._reports.owed.add(Owed.MOVABLE)

    def migrate(self) -> None:
        """ClusterD has its pod removed: the node is to move now."""
        self._ordered = not self._over  # otherwise it comes twice

    def follow_up(self) -> None:
        if self._moving is None:
            if self._ordered:
                self._result(FAILED, "no node is to move")
            return
        node, agent = self._moving
        if self._switch.ready(node):
            self._reports.pay(Owed.MOVABLE, strategies=(WORD,))
        elif self._switch.moves(node):
            return
        elif Owed.MOVABLE in self._reports.owed:
            self._reports.pay(Owed.MOVABLE, strategies=("exit",))
            self.forget()
        elif self._ordered:
            moved = self._job.topology.nodes[node].agent != agent
            self._result(OK if moved else FAILED, "" if moved else "the node has not moved")

    def _result(self, code: int, text: str) -> None:
        self._reports.report("ReportRecoverStatus", code, text, strategy=WORD)
        self.forget()
        self._over = True

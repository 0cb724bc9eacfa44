"""ClusterD's elastic training: `downgrade` shrinks the job (core/incident/elastic.py), `upgrade`
has it grow (core/nodes/growth.py).

After `downgrade` ClusterD waits for two reports: first which ranks leave, upon which it has the
pods of these nodes end that are not faulty themselves (`faultNodesExit`), then the result. Then it
waits until pods have been replaced and all of them run, and orders `upgrade`. So growth is held
from the one order to the other, and only there: a ClusterD that has begun anew does not know that
the job is shrunk, and orders nothing.

Of a shrunk job ClusterD has no further repair: it answers the next fault with `dump` or `exit`.

If `recover` was ordered and no pod comes, this manager shrinks the job by its own ladder, often a
moment before ClusterD orders it. So `recover` is reported only once it is clear that `downgrade`
does not follow.
"""

from __future__ import annotations

import json

from taskd.core import events as e
from taskd.core.abbreviate import abbreviate
from taskd.core.coordinator import Coordinator
from taskd.core.job.ladder import ELASTIC
from taskd.messages.from_rank import OTHER
from taskd.mindcluster.clusterd.deciding.nodes import Nodes
from taskd.mindcluster.clusterd.deciding.reports import FAILED, ISOLATED, OK, Reports

SHRINK, GROW = "downgrade", "upgrade"  # ClusterD's words
PARAMETERS = {SHRINK: {"scale-in-strategy": "DP"}, GROW: {"scale-out-strategy": "DP"}}
# until `upgrade` is reported as failed: ClusterD waits 15 minutes, and then kills the job
LIMIT = 840.0


class ElasticTraining:
    def __init__(self, parts: Coordinator, reports: Reports, nodes: Nodes) -> None:
        self._job, self._recovery, self._growth = parts.job, parts.recovery, parts.growth
        self._reports, self._nodes = reports, nodes
        self._isolated = False  # ClusterD knows which ranks leave
        self._instead = False  # the job has shrunk where `recover` was ordered
        self._until: float | None = None  # by when that is reported
        self._due: float | None = None  # by when `upgrade` is reported; None: it is not ordered
        self._exits: list[e.AdvisorSignal] = []  # nodes to give up once the job has shrunk

    @property
    def deadline(self) -> float | None:
        return min((t for t in (self._until, self._due) if t is not None), default=None)

    def forget(self) -> None:
        """ClusterD begins anew, or orders something else."""
        self._growth.held = self._isolated = self._instead = False
        self._until = self._due = None
        self._exits.clear()

    # -- orders ------------------------------------------------------------------------------------

    def refusal(self, event: e.AdvisorSignal) -> str:
        """Why the order is refused; "" if it is not, or is another."""
        if event.strategy not in PARAMETERS:
            return ""
        allowed = PARAMETERS[event.strategy]
        try:
            given = json.loads(event.extra)
        except ValueError:
            given = None
        if given != allowed:
            return (
                f"{event.strategy} with {event.extra!r} is not possible; taskd can"
                f" {json.dumps(allowed)}: whole data-parallel replicas leave and come back"
            )
        if ELASTIC not in (ladder := self._job.settings.ladder):
            return (
                f"{event.strategy} needs {ELASTIC} among the job's strategies, and they are"
                f" {', '.join(ladder)}: add it to recover-strategy"
            )
        return ""

    def ordered(self, word: str) -> None:
        """A strategy other than `upgrade` is ordered."""
        self.forget()
        self._growth.held = word == SHRINK

    def grows(self, now: float) -> None:
        """`upgrade` is ordered."""
        self.forget()
        self._due = now + LIMIT

    @property
    def reads(self) -> bool:
        """Whether stand-ins may still need what is on the nodes of ranks that leave."""
        incident = self._recovery.incident
        return incident is not None and incident.strategy == ELASTIC

    def nodes_exit(self, event: e.AdvisorSignal, now: float) -> None:
        """ClusterD ends the pods of nodes whose ranks have left."""
        if self.reads:
            self._exits.append(event)
        else:
            self._nodes.leave(event, now)

    # -- results -----------------------------------------------------------------------------------

    def tell_who_leaves(self, word: str) -> None:
        """Report the ranks that leave for `downgrade`, as soon as they are known."""
        incident = self._recovery.incident
        known = incident is None or (self.reads and incident.round.stand_ins is not None)
        if word != SHRINK or self._isolated or not known:
            return
        self._isolated = True
        ranks = self._leaving()
        text = f"ranks [{abbreviate(ranks)}] leave, others stand in for them"
        self._reports.report(
            "ReportRecoverStatus",
            ISOLATED,
            text if ranks else "no whole node leaves",
            ranks=tuple((rank, OTHER) for rank in ranks),
            strategy=SHRINK,
        )

    def _leaving(self) -> list[int]:
        """The ranks that are away of nodes that no other rank needs: ClusterD ends the pods of all
        reported to it. It does not expect node 0 to end while the job goes on."""
        topology = self._job.topology
        gone = [n for i, n in topology.nodes.items() if i and topology.gone(n)]
        return sorted(r for node in gone for r in node.ranks)

    def stands_in(self, word: str, waits: bool, now: float) -> bool:
        """Whether the result of `recover` is withheld, since the job shrinks instead. `waits`:
        ClusterD may still order that, which it does where no pod comes."""
        incident = self._recovery.incident
        if word != "recover":
            return False
        if incident is not None and not self.has_shrunk:
            self._instead = incident.strategy == ELASTIC
            return self._instead
        if incident is not None or not (self._instead and waits and self._job.away):
            return False  # another fault is handled for itself
        if self._until is None:
            self._until = now + self._job.settings.advice
        return now < self._until

    @property
    def has_shrunk(self) -> bool:
        """Whether the job trains on after it has shrunk where `recover` was ordered."""
        return self._until is not None

    @property
    def growing(self) -> bool:
        """Whether ClusterD waits for the result of `upgrade`."""
        return self._due is not None

    def grown(self, now: float) -> tuple[int, str] | None:
        """The result of `upgrade`, once there is one."""
        if self._due is None:
            return None
        if self._job.over:
            return FAILED, "the job is over"
        away = abbreviate(sorted(self._job.away))
        if self._recovery.incident is None and not self._job.away:
            return OK, ""
        if self._growth.given_up:
            return (
                FAILED,
                f"the job stays as it is: the nodes of ranks [{away}] could not take part",
            )
        if now >= self._due:
            return FAILED, f"the job stays as it is: ranks [{away}] are not back in {LIMIT:.0f} s"
        return None

    def follow_up(self, now: float) -> None:
        if self._exits and not self.reads:
            exits, self._exits = self._exits, []
            for event in exits:
                self._nodes.leave(event, now)

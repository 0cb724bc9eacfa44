"""Waits for the pod that replaces that of a lost node, and then restarts all ranks:
`pod-rescheduling: on`.

This is for ranks that are not repaired one by one: those of a script that is not protected, and
protected ones at the end of the ladder (lifecycle/restarts.py); and, whatever that label says, for
the nodes whose pods an advisor has ended. The launcher of the new pod waits as a standby
(torchrun), or registers for its node (msrun). The other pods stay, and their launchers keep the
ranks that are left until all restart.

    all nodes have agents --(lost, given up, or unknown to a new manager)--> waiting
    waiting --(every lost node has an agent)--> all ranks are restarted
    waiting --(too late)--> the job ends, and the scheduler may start it anew
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from taskd.core.abbreviate import abbreviate
from taskd.core.incident.takeover import Takeover
from taskd.core.job.state import JobState, Part
from taskd.core.job.topology import Node
from taskd.messages import from_agent


class Pods(Part):
    def __init__(
        self,
        job: JobState,
        nodes: Takeover,
        causes: Mapping[int, str],
        forget: Callable[[str], None],
    ) -> None:
        """`causes`: dead rank -> how it ended. `forget`: makes all parts forget the ranks'
        processes; takes the reason."""
        self._job, self._nodes, self._causes, self._forget = job, nodes, causes, forget
        self._why = ""  # what was lost first
        self._last: float | None = None  # until when the missing pods are waited for
        self._given: float | None = None  # until when a standby may take a node over
        # deadline for nodes unknown to a new manager to register with it
        self._gather: float | None = None
        # why the job is at its end, and until when the loss of a node may explain that
        self._fault = ""
        self._end: float | None = None

    @property
    def applies(self) -> bool:
        """Whether a lost node is waited for: the job has several, and all are known."""
        job, waits = self._job, self._job.settings.pods or self._last is not None
        return waits and job.settings.nodes > 1 and job.topology.complete

    @property
    def waiting(self) -> bool:
        """Whether a lost node is waited for, or may turn out to be lost."""
        return self._last is not None or self._end is not None

    @property
    def deadline(self) -> float | None:
        due = (self._last, self._given, self._gather, self._end)
        return min((t for t in due if t is not None), default=None)

    def _stop(self) -> None:
        """Wait for nothing."""
        self._last = self._given = self._gather = self._end = None
        self._why = self._fault = ""

    # -- what is lost ------------------------------------------------------------------------------

    def lost(self, number: int, why: str, now: float) -> bool:
        """Handle the loss of a node's agent in a job that is not protected. Returns whether its
        next pod is waited for."""
        if not self.applies and self._gather is None:
            return False
        self._nodes.lose(number)
        self._wait(self._fault or f"node {number} is lost: {why}", now)
        return True

    def _exhausted(self, now: float) -> None:
        """No strategy is left for a protected job. If it has lost nodes, or its devices take no
        other process, pods are waited for. Other ranks often fail before a node's loss is detected:
        the job ends only if no loss is detected for a while."""
        why, self._job.exhausted = self._job.exhausted, ""
        if not self.applies:
            self._job.give_up(why)
            return
        self._forget(f"all ranks are restarted: {why}")
        for number, node in self._job.topology.nodes.items():
            unusable = [w for r in node.ranks if (w := self._job.rank(r).unusable)]
            if node.living and unusable:
                self._nodes.give_up(number, unusable[0])
        if self._job.topology.lost:
            self._wait(why, now)
        else:
            self._fault, self._end = why, now + self._job.settings.notice

    def replace(self, numbers: Iterable[int], why: str, now: float) -> None:
        """Give these nodes up: all ranks are restarted with their next pods, unless the job ends,
        see JobState.restart_all."""
        if self._job.ends_to_load(why):
            return
        self._forget(f"all ranks are restarted: {why}")
        for number in numbers:
            if self._job.topology.nodes[number].living:
                self._nodes.give_up(number, why)
        self._wait(why, now)

    def _wait(self, why: str, now: float) -> None:
        limit = self._job.settings.reschedule
        self._why = self._why or why
        self._fault, self._end = "", None
        self._last = now + limit
        self._job.note(
            f"{why}; all ranks are restarted once a replacement pod has come, within {limit:.0f} s"
        )
        self.assign(now)

    def next(self, event: from_agent.AgentJoined, known: Node | None) -> bool:
        """Whether the agent is that of the next pod of a lost node, which registers by itself. The
        former agent, if any, is no longer part of the job."""
        free = known is not None and known.lost and not known.assignee
        if not self.waiting or not free or event.agent in self._job.fenced:
            return False
        if known is not None and known.agent not in ("", event.agent):
            self._job.fence(known.agent, event.node, f"node {event.node} has another pod")
        self._job.election.candidate.want(event.agent, True)
        return True

    def registered(self, event: from_agent.AgentJoined, now: float) -> None:
        """Note an agent's registration. Nodes that do not register with a new manager were lost
        with the previous one."""
        job = self._job
        taken_over = job.election.candidate.term > 1
        if not job.settings.pods or job.protected or job.topology.complete:
            self._gather = None
        elif taken_over and self._gather is None and not self.waiting:
            self._gather = now + job.settings.gather
        self.assign(now)

    def _missing(self, now: float) -> None:
        """Count the nodes that have not registered as lost."""
        job, nodes, each = self._job, self._job.topology.nodes, self._job.settings.ranks_per_node
        missing = [n for n in range(job.settings.nodes) if n not in nodes]
        epoch = max((n.epoch for n in nodes.values()), default=0)
        for number in missing:
            ranks = tuple(range(number * each, number * each + each))
            if job.topology.join(number, ranks, ("", 0), epoch) is None:
                self._nodes.lose(number)
        if missing:
            self._wait(f"nodes [{abbreviate(missing)}] did not register with a new manager", now)

    # -- what comes for it -------------------------------------------------------------------------

    def assign(self, now: float) -> None:
        """Give lost nodes to the standbys that there are."""
        topology = self._job.topology
        if self._last is None or not topology.standbys:
            return
        if any(not topology.nodes[n].assignee for n in topology.lost):
            self._nodes.assign(None)
            self._given = now + self._job.settings.take_over

    def follow_up(self, now: float) -> None:
        if self._job.exhausted:  # another part's follow-up has ended an incident
            self.decide(now)

    def decide(self, now: float) -> None:
        """Restart all ranks if every node has an agent again; called after every event."""
        job = self._job
        if job.exhausted and not job.over:
            self._exhausted(now)
        if job.over:
            return
        if job.protected:
            self._stop()  # all nodes are there again, or are repaired
            return
        if self._causes and self.applies:
            self._give_up_devices(now)
        if not self.waiting:
            return
        job.restart = ""  # a restart without these nodes would wait for them
        if self._end is None and job.topology.complete and not job.topology.lost:
            job.restart_all(f"{self._why}; every node has an agent again", "node")
            self._stop()

    def _give_up_devices(self, now: float) -> None:
        """Give up the nodes with a dead rank whose device takes no other process."""
        job, topology = self._job, self._job.topology
        for rank, cause in sorted(self._causes.items()):
            node = topology.node_of(rank)
            unusable = job.rank(rank).unusable
            if unusable and node is not None and topology.nodes[node].living:
                why = f"rank {rank} {cause}, and its device is {unusable}"
                self._nodes.give_up(node, why)
                self._wait(f"node {node}: {why}", now)

    # -- time --------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        job, topology = self._job, self._job.topology
        if self._end is not None and now >= self._end:
            job.give_up(self._fault)
            return
        if self._gather is not None and now >= self._gather:
            self._gather = None
            self._missing(now)
        if self._given is not None and now >= self._given:
            self._given = None
            self._not_taken(now)
        if self._last is not None and now >= self._last:
            why, limit = self._why, job.settings.reschedule
            nodes = abbreviate(topology.lost)
            job.end(
                False, f"no replacement pod came for nodes [{nodes}] within {limit:.0f} s: {why}"
            )

    def _not_taken(self, now: float) -> None:
        """Standbys had time enough to take nodes over: ask others."""
        job, topology = self._job, self._job.topology
        for number in topology.lost:
            if assignee := topology.nodes[number].assignee:
                limit = job.settings.take_over
                job.fence(
                    assignee, number, f"it has not taken node {number} over within {limit:.0f} s"
                )
                self._nodes.lose(number)
        self.assign(now)

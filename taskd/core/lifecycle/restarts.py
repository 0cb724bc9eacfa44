"""Restarts all ranks where they are not repaired one by one: those of a script that is not
protected, and protected ones at the end of the ladder. Nothing survives but what the script saves.

The manager alone orders it, for all nodes alike; a launcher restarts its ranks by itself only while
no manager has answered it. The manager also notifies msrun's ranks once the process groups of all
of them exist.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from taskd.core.abbreviate import abbreviate
from taskd.core.job.state import JobState, Part
from taskd.messages import from_agent, from_rank, to_agent, to_rank


class Restarts(Part):
    def __init__(
        self, job: JobState, waits: Callable[[], bool], forget: Callable[[str], None]
    ) -> None:
        """`waits`: whether a restart must wait for nodes that may still come. `forget`: makes all
        parts forget the ranks' processes; takes the reason."""
        self._job, self._waits, self._forget = job, waits, forget
        self._epochs: dict[int, int] = {}  # node -> epoch of the processes that have registered
        self._nodes_in: Counter[int] = Counter()  # epoch -> how many nodes are in it
        self._ordered: dict[int, int] = {}  # node -> epoch that it was ordered to end
        self._ending: set[int] = set()  # nodes that have not carried that out
        self._connected: set[int] = set()  # ranks whose process group exists
        self.causes: dict[int, str] = {}  # of ranks that have died
        self._lost = ""  # the scheduler that ranks may wait for in vain
        # until when nodes that have never registered may do so, although a rank has died
        self._deadline: float | None = None

    @property
    def deadline(self) -> float | None:
        return self._deadline

    def registered(self, event: from_agent.AgentJoined, now: float) -> None:
        """Note which of the agent's processes are new."""
        if self._epochs.get(event.node) != event.epoch:
            self._enter(event.node, event.epoch)
            self._connected -= set(event.ranks)
            for rank in event.ranks:
                self.causes.pop(rank, None)
        for rank in event.dead:
            self.causes.setdefault(rank, "has died")

    def taken(self, event: from_agent.NodeTaken) -> None:
        """A standby has become a node: it restarts its ranks as the others do."""
        node = self._job.topology.nodes.get(event.node)
        if node is not None and node.agent == event.agent:
            self._enter(event.node, node.epoch)

    def _enter(self, node: int, epoch: int) -> None:
        """The node's processes are those of that epoch."""
        before = self._epochs.get(node)
        self._nodes_in -= Counter(() if before is None else (before,))
        self._nodes_in[epoch] += 1
        self._epochs[node] = epoch
        if epoch <= self._ordered.get(node, -1):
            self._ending.add(node)
        else:
            self._ending.discard(node)

    def died(self, event: from_agent.RankDied, now: float) -> None:
        self.causes[event.rank] = event.why
        if not self._job.topology.complete and self._deadline is None:
            self._deadline = now + self._job.settings.form

    def tick(self, now: float) -> None:
        """Ranks that have died cannot be restarted as long as some nodes are unknown."""
        if self._deadline is None or now < self._deadline:
            return
        self._deadline = None
        job, dead = self._job, min(self.causes, default=None)
        if dead is not None and not (job.topology.complete or job.protected or job.over):
            missing = [n for n in range(job.settings.nodes) if n not in job.topology.nodes]
            job.end(
                False,
                f"rank {dead} {self.causes[dead]}, and nodes [{abbreviate(missing)}] have not"
                f" joined within {job.settings.form:.0f} s",
            )

    def connected(self, event: from_rank.GroupReady, now: float) -> None:
        """Note that the rank's process group exists. Once all ranks' do, all ranks are notified; a
        rank that was started alone finds those of the others."""
        if self._job.topology.node_of(event.rank) in self._ending:
            return
        self._connected.add(event.rank)
        if len(self._connected) == len(self._job.ranks):
            self._lost = ""
            self._job.say(to_rank.GroupsReady())

    def scheduler_died(self, event: from_agent.SchedulerDied, now: float) -> None:
        """Ranks whose groups exist train on, and the new scheduler accepts them. One that is still
        making its group may wait for the old scheduler for minutes."""
        job = self._job
        why = f"the scheduler on node {event.node} {event.cause}"
        if len(self._connected) == len(job.ranks):
            job.note(f"{why} and was replaced; the ranks train on")
        else:
            self._lost = f"{why} before all ranks had made their groups"

    def follow_up(self, now: float) -> None:
        if self._job.restart:  # another part's follow-up has ended an incident
            self.decide()

    def decide(self) -> None:
        """Order a restart if one is due; called after every event."""
        job = self._job
        if job.over:
            return
        if not job.protected and not job.restart:
            self._decide()
        if job.restart:
            self._restart_all(job.restart)

    def _decide(self) -> None:
        """Restart unprotected ranks if one has died, or if the nodes are in different epochs, as a
        lost manager may leave them. Wait while nodes still carry out such an order."""
        job, nodes = self._job, self._job.topology.nodes
        dead = [r for r in sorted(self.causes) if r in job.ranks and not job.ranks[r].alive]
        if dead:  # rarely: this looks at all nodes
            self._ending -= {n for n in self._ending if nodes[n].ended is not None}
        if not job.topology.complete or self._ending or self._waits():
            return
        left = sorted(n for n, node in nodes.items() if node.ended) if dead else []
        if left:
            job.give_up(
                f"rank {dead[0]} {self.causes[dead[0]]} after the ranks of nodes"
                f" [{abbreviate(left)}] had ended well: all ranks can no longer be started together"
            )
        elif dead:
            job.restart_all(f"rank {dead[0]} {self.causes[dead[0]]}", "rank")
        elif self._lost:
            job.restart_all(self._lost, "rank")
        elif len(self._nodes_in) > 1:
            last = max(self._epochs, key=lambda node: (self._epochs[node], -node))
            job.restart_all(f"node {last} has restarted its ranks", "rank")

    def _restart_all(self, reason: str) -> None:
        job = self._job
        self._forget(f"all ranks are restarted: {reason}")
        job.note(f"all ranks are restarted: {reason}")
        nodes = job.topology.nodes
        for node in nodes.values():
            node.keepers_notified = False  # no node keeps its next processes' records yet
        epochs = tuple(sorted((number, node.epoch) for number, node in nodes.items()))
        attempt = max(epoch for _, epoch in epochs) + 1
        job.say(to_agent.RestartAll(epochs, reason, job.store(), attempt, job.restart_fault))
        self._ordered, self._ending, self._lost = dict(self._epochs), set(self._epochs), ""
        self._connected.clear()

"""Jobs whose launchers restart their ranks by the manager's order alone: msrun has no rendezvous of
its own, and with pod-rescheduling (pods.py) torchrun does not use its own. The manager also tells
msrun's ranks when the process groups of all of them exist.

Such ranks are not protected: nothing of them survives their death but what the script saves.
"""

from __future__ import annotations

from taskd.core.abbreviate import abbreviate
from taskd.core.state import JobState, Part
from taskd.messages import from_agent, from_rank, to_rank


class Led(Part):
    def __init__(self, job: JobState) -> None:
        self._job = job
        self._epochs: dict[int, int] = {}  # node -> epoch of its processes; of nodes that are led
        self._ordered: dict[int, int] = {}  # node -> epoch that it was ordered to end
        self._connected: set[int] = set()  # ranks whose process group exists
        self.causes: dict[int, str] = {}  # of ranks that have died
        self._lost = ""  # the scheduler that ranks may wait for in vain
        # until when nodes that have never registered may do so, although a rank has died
        self._deadline: float | None = None

    @property
    def deadline(self) -> float | None:
        return self._deadline

    @property
    def attempt(self) -> int:
        """The epoch in which the nodes restart their ranks; 0 if their launchers need none."""
        return max(self._epochs.values()) + 1 if self._epochs else 0

    @property
    def formed(self) -> bool:
        """Whether all nodes are known, and their launchers have no rendezvous."""
        return bool(self._epochs) and self._job.topology.complete

    def registered(self, event: from_agent.AgentJoined, now: float) -> None:
        """Note an agent's registration, and which of its processes are new."""
        if not event.led:
            self._epochs.pop(event.node, None)
            return
        if self._epochs.get(event.node) != event.epoch:
            self._epochs[event.node] = event.epoch
            self._connected -= set(event.ranks)
            for rank in event.ranks:
                self.causes.pop(rank, None)
        for rank in event.dead:
            self.causes.setdefault(rank, "has died")

    def died(self, event: from_agent.RankDied, now: float) -> None:
        self.causes[event.rank] = event.why
        if self._epochs and not self.formed and self.deadline is None:
            self._deadline = now + self._job.settings.form

    def tick(self, now: float) -> None:
        """Ranks that have died cannot be restarted as long as some nodes are unknown."""
        if self.deadline is None or now < self.deadline:
            return
        self._deadline = None
        job, dead = self._job, min(self.causes, default=None)
        if dead is not None and not self.formed and not job.over:
            missing = [n for n in range(job.settings.nodes) if n not in job.topology.nodes]
            job.end(
                False,
                f"rank {dead} {self.causes[dead]}, and nodes [{abbreviate(missing)}] have not"
                f" joined within {job.settings.form:.0f} s",
            )

    def connected(self, event: from_rank.GroupReady, now: float) -> None:
        """The rank's process group exists. Once those of all ranks do, all are told; a rank that
        was started alone finds the others'."""
        if self._ending(self._job.topology.node_of(event.rank)):
            return
        self._connected.add(event.rank)
        if len(self._connected) == len(self._job.ranks):
            self._lost = ""
            self._job.say(to_rank.GroupsReady())

    def taken(self, event: from_agent.NodeTaken) -> None:
        """A standby has become a node: it restarts its ranks as the others do."""
        node = self._job.topology.nodes.get(event.node)
        if node is not None and node.agent == event.agent and self._epochs:
            self._epochs[event.node] = node.epoch

    def scheduler_died(self, event: from_agent.SchedulerDied, now: float) -> None:
        """Ranks whose groups exist train on, and the new scheduler accepts them. One that is still
        making its group may wait for the old scheduler for minutes."""
        job = self._job
        why = f"the scheduler on node {event.node} {event.cause}"
        if len(self._connected) == len(job.ranks):
            job.note(f"{why} and was replaced; the ranks train on")
        else:
            self._lost = f"{why} before all ranks had made their groups"

    def decide(self) -> None:
        """Restart all ranks if one has died, or if the nodes have not restarted theirs together, as
        under a manager that is gone. While nodes still carry out such an order, wait."""
        job = self._job
        if not self.formed or job.protected or job.restart:
            return
        if any(self._ending(node) for node in self._epochs):
            return
        dead = [r for r in sorted(self.causes) if not job.ranks[r].alive]
        if dead:
            job.restart = f"rank {dead[0]} {self.causes[dead[0]]}"
        elif self._lost:
            job.restart = self._lost
        elif len(set(self._epochs.values())) > 1:
            last = max(self._epochs, key=lambda node: (self._epochs[node], -node))
            job.restart = f"node {last} has restarted its ranks"

    def _ending(self, node: int | None) -> bool:
        """Whether the node's processes have been ordered to end."""
        return node in self._epochs and self._epochs[node] <= self._ordered.get(node, -1)

    def restarted(self) -> None:
        """The order to restart all ranks has been given."""
        self._ordered, self._lost = dict(self._epochs), ""
        self._connected.clear()

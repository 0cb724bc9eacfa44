"""Lost nodes, and who takes their place: the part of an incident that needs another agent.

A node is lost when nobody is heard there, or when it is given up because a rank of it cannot be replaced where it is. A standby is told
to take it over; from that moment the agent that was there is *fenced*: whatever it says changes nothing, and its ranks end.
Nothing is taken over without the majority of all agents, standbys among them: the others may be well, cut off from us only, and do
the same with a manager of their own.
"""

from __future__ import annotations

from taskd.core import commands as c
from taskd.core.incident import Incident
from taskd.core.state import JobState


class Reschedule:
    def __init__(self, job: JobState) -> None:
        self._job = job

    def broken(self, incident: Incident | None) -> list[int]:
        """Living nodes that `recover` gives up: with a rank whose process is gone or cannot be kept, where replacing it on its node is
        not configured, or has failed."""
        failed = incident.failed if incident is not None else ()
        if "recover-in-place" in self._job.settings.ladder and "recover-in-place" not in failed:
            return []
        topology = self._job.topology
        ranks = {r for r, s in self._job.ranks.items() if not s.alive} | set(incident.condemned if incident is not None else ())
        return sorted({n for r in ranks if (n := topology.node_of(r)) is not None and topology.nodes[n].living})

    def lose(self, number: int) -> None:
        """The node's processes are gone for us."""
        node = self._job.topology.nodes[number]
        node.lost, node.heir = True, ""
        for rank in node.ranks:
            state = self._job.ranks[rank]
            state.alive, state.left, state.finished = False, None, None

    def give_up(self, number: int, why: str) -> None:
        """A node that is heard, and is not used any more."""
        self.lose(number)
        self._job.note(f"node {number} is given up: {why}")
        self._fence(number, why)

    def _fence(self, number: int, why: str) -> None:
        node = self._job.topology.nodes[number]
        if node.agent:
            self._job.say(c.Fence(node.agent, number, why))
        node.agent = ""

    def assign(self, incident: Incident) -> None:
        """A standby for every lost node, as far as there are any."""
        topology = self._job.topology
        for number in topology.lost:
            node = topology.nodes[number]
            if node.heir:
                continue
            agent = topology.free(len(node.ranks))
            if agent is None:
                self._job.note(f"node {number} waits for a standby")
                continue
            if not topology.majority():
                heard, everybody = topology.heard()
                self._job.note(f"node {number} is not given to a standby: only {heard} of {everybody} agents are heard, no majority")
                continue
            reason = f"node {number} is lost"
            del topology.standbys[agent]
            node.heir = agent
            for rank in node.ranks:
                incident.renew(rank, self._job.ranks[rank])
            keeper = topology.nodes.get(node.keeper) if node.keeper is not None else None
            records = keeper.records if keeper is not None and keeper.living else ("", 0)
            incarnations = tuple(self._job.ranks[r].incarnation for r in node.ranks)
            self._fence(number, reason)
            self._job.say(
                c.TakeOver(
                    agent=agent,
                    node=number,
                    ranks=node.ranks,
                    incarnations=incarnations,
                    nodes=len(topology.nodes),
                    world_size=topology.world_size,
                    epoch=node.epoch + 1,
                    generation=self._job.generation,
                    pause=self._job.pause,
                    records=records,
                    reason=reason,
                )
            )

    def keep_records(self) -> None:
        """Every living node has its records copied to a living one, where a lost node can be replaced at all."""
        job = self._job
        if "recover" not in job.settings.ladder or not job.protected:
            return
        for number in job.topology.renew_keepers():
            keeper = job.topology.nodes[number].keeper
            assert keeper is not None
            job.say(c.KeepRecords(number, keeper, job.topology.nodes[keeper].records))

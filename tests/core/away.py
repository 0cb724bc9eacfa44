"""Checks what the coordinator orders about ranks that are away, and what it says of them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from taskd.core import commands as c
from taskd.messages import to_agent, to_rank

if TYPE_CHECKING:
    from taskd.core.coordinator import Coordinator
    from tests.core.world import World


def may_read(coordinator: Coordinator, command: c.Command) -> None:
    """An agent that is told where records are may read them there: from one of those that have
    them, as a keeper may be about to give its node away."""
    topology = coordinator.job.topology
    if isinstance(command, to_agent.TakeRecords):
        agent, sources = topology.nodes[command.node].agent, command.sources
        if command.interruption < coordinator.job.interruption:
            return  # the same event has begun another round, in which its node may be given up
    elif isinstance(command, to_agent.Prepare | to_agent.TakeOver):
        agent, sources = command.agent, command.nested
    else:
        return
    hosts = {node.records: number for number, node in topology.nodes.items()}
    for number, _, addresses in sources:
        may = [
            coordinator.admission.may(hosts[address], number, agent, fetch=True)
            for address in addresses
        ]
        assert any(may), f"{agent} may not read the records of node {number} at {addresses}"


class Away:
    def __init__(self, world: World) -> None:
        self.world = world
        self._dumps_all = False  # the records of all ranks are to be in the dump

    def check(self, command: c.Command) -> None:
        may_read(self.world.coordinator, command)
        if isinstance(command, to_rank.Rebuild):
            self._stand_ins(dict(command.stand_ins))
        elif isinstance(command, to_agent.SaveRecords | to_agent.Seal) and self.world.elastic:
            self._dump(command)
        elif isinstance(command, c.Note) and ": elastic-training failed: " in command.text:
            self._lacks(command.text.split(" failed: ", 1)[1])

    def _stand_ins(self, stand_ins: dict[int, int]) -> None:
        """Each rank that is away has a stand-in of its replica set that is not, and of each set the
        first present one stands in for the first."""
        job, ranks = self.world.coordinator.job, self.world.ranks
        assert stand_ins.keys() == job.away.keys(), f"{stand_ins}, but away are {set(job.away)}"
        assert job.ranks.keys() >= set(stand_ins.values())
        assert all(ranks[a].replica_set == ranks[s].replica_set for a, s in stand_ins.items())
        for of in range(self.world.sets):
            present = [r.number for r in ranks if r.replica_set == of and r.number in job.ranks]
            assert stand_ins.get(of, of) == present[0], f"{stand_ins.get(of)} stands in for {of}"

    def _dump(self, command: to_agent.SaveRecords | to_agent.Seal) -> None:
        """A dump has the records of all ranks, unless some were lost before."""
        job = self.world.coordinator.job
        if isinstance(command, to_agent.SaveRecords):
            whole = all(r.alive for r in job.ranks.values()) and not job.topology.lost
            whole = whole and not any(self.world.ranks[n].stateless for n in job.ranks)
            self._dumps_all = whole and job.stand_ins.keys() == job.away.keys()
            return
        without = {r.number for r in self.world.ranks} - self.world.dumped[command.name]
        assert not (without and self._dumps_all), f"no records of {without}"

    def _lacks(self, why: str) -> None:
        """What a strategy lacks is nowhere."""
        if "left no record" in why:
            without = [int(n) for n in re.findall(r"[0-9]+", why.split(" left")[0])]
            kept = [r for r in without if self.world.chains.kept_somewhere(r)]
            assert not kept, f"{why}, but there are records of ranks {kept}"

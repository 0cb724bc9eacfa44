"""How the agents of a `World` take part in elastic training: they take the records of ranks that
are away, leave these ranks alone, and are given their nodes back."""

from __future__ import annotations

import random
from typing import Any

from taskd.core.settings import Settings
from taskd.messages import from_agent, to_agent
from tests.core.actors import ENDED, Former, Node, Part, Rank
from tests.core.chains import File, left_behind

LADDERS = (
    *["elastic-training", "recover-in-place,elastic-training"],
    *["retry,recover-in-place,elastic-training"] * 3,
    *["recover,elastic-training", "retry,recover-in-place,recover,elastic-training"] * 2,
    *["retry,elastic-training,dump", "retry,recover-in-place,recover,elastic-training,dump"],
)


def settings(chance: random.Random, about: dict[str, Any]) -> Settings:
    nodes = chance.choice([2, 3, 3, 4, 4, 5])
    per_node = chance.choice([1, 1, 1, 2, 2, 4]) if nodes < 5 else 1
    ladder = (*chance.choice(LADDERS).split(","), "exit")
    about = {**about, "reschedule": chance.choice([3.0, 10.0, 60.0])}
    return Settings(nodes, per_node, ladder, "move", **about)


def sets(chance: random.Random, shape: Settings) -> int:
    """How many replica sets: a lane is one rank, a node, half of one, or two nodes; or sets have
    different sizes."""
    nodes, each = shape.nodes, shape.ranks_per_node
    world = nodes * each
    able = [s for s in (1, 1, each, max(each // 2, 1), 2 * each) if 2 * s <= world]
    return chance.choice([*able * 3, 2 if each > 1 or nodes > 3 else 1])


class Shrinking(Part):
    def leave(self, rank: Rank) -> None:
        """The job goes on without the rank: its process, if it has one, is killed."""
        rank.away = True
        if rank.alive and rank.mode != ENDED:
            self.counts["killed, as it is away"] += 1
            self.world.training.die(rank, "was killed by SIGKILL")

    def take(self, node: Node, order: to_agent.TakeRecords) -> None:
        """Put the records of ranks that are away where this node's ranks find them."""
        if order.node != node.number:
            return
        agent = node.agent

        def taken() -> None:
            if node.gone or node.agent != agent:
                return
            chains = self.world.chains
            wanted = {
                r for source, ranks, _ in order.sources if source == node.number for r in ranks
            }
            here = {r: file for r, file in node.files.items() if r in wanted}
            there = {r: node.taken[r] for r in order.away if r in node.taken}
            others = [source for source in order.sources if source[0] != node.number]
            found = chains.pick(order.away, [here, there, *chains.gather(agent, others)])
            node.taken.update(found)
            sets = self.world.ranks
            left = tuple(left_behind(found[r], sets[r].replica_set) for r in order.away)
            self.counts["records taken" if all(left) else "no records taken"] += 1
            told = from_agent.RecordsTaken(node.number, order.interruption, order.away, left)
            self.say(node, told)

        delays = [0.001, 0.01, 0.3, 1.5]
        self.after(12.0 if self.likely(0.05) else self.chance.choice(delays), taken)

    # -- nodes that come back ----------------------------------------------------------------------

    def nested(self, order: to_agent.Prepare | to_agent.TakeOver) -> dict[int, File]:
        """The records of the ranks that come back; none if there are none of any."""
        chains = self.world.chains
        found = chains.pick(order.ranks, chains.gather(order.agent, order.nested))
        return found if any(found.values()) else {}

    def fetched(self, order: to_agent.TakeOver) -> dict[int, File]:
        """The records with which a standby begins as the node."""
        none: dict[int, File] = {rank: {} for rank in order.ranks}
        if order.nested:
            return {**none, **self.nested(order)}
        found = self.world.chains.fetch(order.agent, order.node, order.ranks, order.records)
        return {**none, **{r: file for r, file in found.items() if r in none}}

    def grows(self, order: to_agent.TakeOver) -> None:
        """A node whose ranks were away is given to a standby, from which it may be taken back."""
        self.counts["node grows" if not order.former else "idle node grows"] += 1
        if order.former:
            former = self.world.formers[order.node]
        else:
            former = Former(order.agent, self.world.manager, lost=True)
        former.grows = tuple(incarnation - 1 for incarnation in order.incarnations)
        former.keep(self.world.nodes[order.node])
        self.world.formers[order.node] = former

    def moved(self, node: Node) -> None:
        """Its ranks resume: if its agent was a standby, it keeps the node."""
        former = self.world.formers.get(node.number)
        if former is not None and former.grows and former.lost and former.assignee == node.agent:
            del self.world.formers[node.number]

    # -- a dump ------------------------------------------------------------------------------------

    def save(self, node: Node, order: to_agent.SaveRecords) -> tuple[int, ...]:
        if self.world.elastic:
            saved = self.world.chains.saved(node, order.step, order.lost)
        else:
            kept = {lost for lost, keeper in order.lost if keeper == node.number}
            of = {node.number, *kept}
            saved = {rank.number for rank in self.world.ranks if rank.node in of}
        self.world.dumped.setdefault(order.name, set()).update(saved)
        return tuple(sorted(saved))

"""A node that moves to a standby, as long as its former agent may get it back."""

from __future__ import annotations

from taskd.core import events as e
from taskd.messages.values import Preparation
from tests.core.actors import ENDED, Former, Node, Part, Rank


class Handover(Part):
    def new_manager(self) -> None:
        """The manager of the moves under way is gone. A standby whose ranks have their state keeps
        the node, any other one stands down."""
        world = self.world
        for number, former in list(world.formers.items()):
            node, agent = world.nodes[number], former.assignee
            taken = node.agent == agent and not node.gone
            if taken and all(r.alive and not r.stateless for r in node.ranks):
                world.counts["standby keeps the node"] += 1
                node.former = "" if former.lost and former.grows else former.node["agent"]
                if not node.former:
                    del world.formers[number]
                continue
            if taken or agent in world.standbys:
                world.standbys.add(agent)
                world.broken_off[agent] = Preparation(
                    number, former.node["epoch"] + 1, (), False, "it is hot"
                )
            self.put_back(number)

    def announce(self, number: int, former: Former) -> None:
        """The agent of a node that a standby has registers with another manager."""
        world = self.world
        if world.formers.get(number) is not former or former.lost or world.over:
            return
        node = Node(number, [])
        node.__dict__.update(former.node)
        node.ranks = [Rank(r["number"], number, replica_set=r["replica_set"]) for r in former.ranks]
        for rank, before in zip(node.ranks, former.ranks, strict=True):
            rank.__dict__.update(before)
        world.hear(world.cluster.announcement(node), node.agent)

    def put_back(self, number: int) -> None:
        former, node = self.world.formers.pop(number), self.world.nodes[number]
        taken = node.agent == former.assignee
        if taken:
            node.__dict__.update(
                {
                    **former.node,
                    "cut": False,  # nobody would notice its loss: it was another agent's node
                    "sent": self.world.now,
                    "received": self.world.now,
                    "joined": self.world.manager if former.manager == self.world.manager else -1,
                }
            )
            self.world.wires[number].begin()
            self.world.wires[number].admitted = former.manager == self.world.manager
            for rank, before in zip(node.ranks, former.ranks, strict=True):
                rank.__dict__.update(before)
                self.world.told_resets.pop(rank.number, None)  # the other machine's
        else:
            # what its agent has told meanwhile was ignored: it is asked to register again
            self.world.wires[number].since = self.world.now
        known = former.grows or tuple(rank.incarnation for rank in node.ranks)
        for rank, incarnation in zip(node.ranks, known, strict=True):
            self.world.invariants.newest[rank.number] = incarnation
        if former.lost:
            self.world.cluster.vanish(node)
        elif taken:  # those that were interrupted meanwhile
            for rank in node.ranks:
                if rank.alive and rank.mode != ENDED and rank.interrupted < node.interruption:
                    self.world.agents.leave(rank, node.interruption)

    def lose(self, number: int, former: Former) -> None:
        if self.world.formers.get(number) is former and not self.world.over:
            self.counts["former lost"] += 1
            former.lost = True
            self.world.deliver(
                e.FormerLost(number, former.node["agent"], "its connection has ended")
            )

"""Faults of a `World` whose replicas may leave: nodes are lost, again and again, and anything at
the orders with which the job shrinks and grows."""

from __future__ import annotations

from taskd.core import commands as c
from taskd.core.job.ladder import ELASTIC
from taskd.messages import to_agent, to_rank
from tests.core.actors import Node, Part

AT = (
    to_agent.TakeRecords | to_agent.Prepare | to_agent.TakeOver | to_agent.KeepRecords
    | to_agent.StandDown | to_rank.Interrupt | to_rank.Rebuild | to_rank.Restore | to_rank.Resume
    | to_rank.Pause | to_rank.Continue | to_agent.SaveRecords | c.Admit
)  # fmt: skip


KINDS = (
    "node", "node", "rank", "host", "stand-in", "standby", "leg", "leg", "manager", "manager",
)  # fmt: skip


class Harm(Part):
    def begin(self) -> None:
        """Lose nodes; some of them are followed by a standby."""
        world = self.world
        # what is left to be done at orders, and how likely it is at each
        self.left = self.chance.choice([0, 0, 1, 2, 4]) if world.trouble else 0
        # in some, nothing else goes wrong
        world.nemesis.left *= self.chance.random() < 0.5
        self.in_growth = self.chance.random() < 0.5
        self.likelihood = self.chance.choice([0.02, 0.1, 0.3])
        world.nemesis.deadly = self.chance.choice([0.0, 0.02, 0.1])
        self.standbys = 10
        for _ in range(self.chance.choice([1, 1, 1, 2, 3])):
            self.after(self.chance.uniform(4.0, 40.0), self.lose_node)
        if self.chance.random() < 0.3:  # so that several nodes come back together
            at = self.chance.uniform(20.0, 60.0)
            for _ in range(self.chance.randint(2, 4)):
                self.come(at)

    def lose_node(self) -> None:
        """Of those that are left one, or several at the same moment."""
        able = [n for n in self.world.nodes if not n.gone and not n.cut and n.protected]
        if self.world.over or len(able) < 2:
            return
        several = self.chance.random() < 0.25
        many = self.chance.randint(1, len(able) - 1) if several else 1
        for node in self.chance.sample(able, many):
            self.lose(node)

    def lose(self, node: Node) -> None:
        stops = self.chance.random() < 0.25
        cluster = self.world.cluster
        (cluster.stop_launcher if stops else cluster.lose_node)(node)
        if self.chance.random() < 0.5:
            self.come(self.chance.choice([0.5, 5.0, 20.0, 80.0]))

    def lose_legs(self) -> bool:
        """Of the agents of nodes that come back, lose one or several; False if there are none."""
        world = self.world
        legs = [(n, f.assignee) for n, f in sorted(world.formers.items()) if f.grows]
        many = self.chance.randint(1, len(legs)) if legs else 0
        for number, agent in self.chance.sample(legs, many):
            node = world.nodes[number]
            if agent in world.standbys:  # it has not taken the node over yet
                world.cluster.lose_standby(agent)
            elif node.agent == agent and not node.gone and not node.cut:
                self.lose(node)
            self.come(self.chance.choice([0.5, 5.0]))
        return bool(legs)

    def come(self, after: float) -> None:
        """Another standby comes."""
        self.standbys += 1
        name = f"standby-{self.standbys}"

        def come() -> None:
            if not self.world.over:
                self.world.cluster.standby(name)

        self.after(after, come)

    def at(self, command: c.Command) -> None:
        """Harm somebody at or soon after an order."""
        world = self.world
        incident = world.coordinator.recovery.incident
        grows = bool(world.coordinator.job.away or world.formers)
        shrinks = incident is not None and incident.strategy == ELASTIC
        special = grows and not shrinks if self.in_growth else grows or shrinks
        if self.left <= 0 or not isinstance(command, AT) or not special or world.over:
            return
        growing = any(former.grows for former in world.formers.values())  # it has few orders
        if self.chance.random() > self.likelihood * (3 if growing else 1):
            return
        self.left -= 1
        kind = self.chance.choice(KINDS)
        when = self.chance.choice([0.0, 0.0005, 0.001, 0.02, 0.3, 2.0])
        strategy = incident.strategy if incident is not None else "none"
        self.after(when, lambda: self.do(kind, f"{type(command).__name__}, {strategy}"))

    def do(self, kind: str, what: str) -> None:
        world, job = self.world, self.world.coordinator.job
        if world.over:
            return
        incident = world.coordinator.recovery.incident
        self.counts[f"{kind} at {what}"] += 1
        stand_ins = set(job.stand_ins.values())
        if incident is not None and incident.round.stand_ins:
            stand_ins |= set(incident.round.stand_ins.values())
        able = [r for r in world.ranks if r.alive and r.number in job.ranks]
        those = [r for r in able if r.number in stand_ins]
        if kind == "node":
            self.lose_node()
        elif kind == "manager":
            world.nemesis.new_manager()
        elif kind == "standby" and world.standbys:
            world.cluster.lose_standby(self.chance.choice(sorted(world.standbys)))
            self.come(self.chance.choice([0.5, 5.0]))
        elif kind == "leg" and self.lose_legs():
            pass
        elif kind == "host" and those:
            node = world.nodes[self.chance.choice(those).node]
            if not node.gone and not node.cut and node.protected:
                self.lose(node)
        elif able:
            victim = self.chance.choice(those if kind == "stand-in" and those else able)
            world.training.die(victim, "was killed by SIGKILL")

"""Jobs of two or three nodes beside ClusterD as it is: the stand-in's state machine with the real
one's waits, on the world's clock. Nothing goes wrong but what is drawn: two or more faults, of
processes, pages, devices and nodes, at any distance; each lost pod is replaced after a while. The
job ends well, unless a moment comes at which no node has its state or two of three are lost; or a
rank has been replaced as often in one incident as is tried; or a pod is lost as it takes a node
over.

A job without ClusterD has the same faults; a device that fails costs it its node.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from taskd.core import commands as c
from taskd.core import events as e
from taskd.core.settings import Settings
from taskd.messages import to_agent
from taskd.mindcluster.clusterd import interface
from taskd.mindcluster.clusterd.client import REPEATED, SOON
from taskd.mindcluster.clusterd.translation import event_of, request_of
from tests.core.actors import Node
from tests.core.fault_center import FaultCenter
from tests.core.world import World
from tests.mindcluster import clusterd_faults, clusterd_machine, clusterd_operations
from tests.mindcluster.clusterd_machine import Life
from tests.mindcluster.clusterd_operations import Operations
from tests.mindcluster.virtual_time import VirtualTime

SHAPES = (2, 2), (2, 2), (3, 1), (3, 2)  # nodes, and ranks of each
LADDER = ("retry", "recover-in-place", "recover", "exit")
NOT_IN_PLACE = ("retry", "recover", "exit")
FIRST, APART = (8.0, 14.0), (0.0, 40.0)  # seconds: the first fault, and from one to the next
AFTER = 160  # steps of 0.3 to 0.6 s after the last fault has come
KINDS = ("kill", "kill", "page", "device", "node")
PODS = (3.0, 25.0)  # seconds until the next one runs
# the real one's waits, in seconds
WAITS = {
    "FLUSH": 1.0,
    "RELEASE": 10.0,
    "CONVERGE": 3.0,
    "INITIAL": 10.0,
    "RESTART": 60.0,
    "KEPT": 10.0,
    "POLL": 5.0,
    "FILTER": 10.0,
    "FILTER_IN_PLACE": 60.0,
    "REPORT": 900.0,
}
BEGIN = (0.0, 0.02, 0.1)
ON_THE_WAY = 0.003
NOTICED = 0.05  # that an agent is gone


@dataclass
class Fault:
    at: float
    kind: str
    rank: int
    lasts: float  # of a page: in device-info; of a pod: until the next one runs


class Machine(Operations):
    def _keep_alive(self, life: Life) -> None:
        """It tells nothing."""


class RealClusterD(FaultCenter):
    def __init__(self, world: World, chance: random.Random) -> None:
        super().__init__(world)
        self.clock = VirtualTime(world.after, lambda: world.now)
        waits = {**WAITS, "BEGIN": chance.choice(BEGIN)}
        modules = ("threading", "queue", "time")
        self._patches = [
            mock.patch.object(module, name, value)
            for module in (clusterd_machine, clusterd_faults, clusterd_operations)
            for name, value in [
                *waits.items(),
                *((name, getattr(self.clock, name)) for name in modules),
            ]
            if hasattr(module, name)
        ]
        for patch in self._patches:
            patch.start()
        per_node = world.settings.ranks_per_node
        self.machine = Machine(world.settings.ladder, per_node, "job", self.clock.condition())
        self.machine.others = chance.choice([0, 0, 0, 2])
        self.stream: Any = None
        self.said: list[str] = []

    def close(self) -> None:
        self.clock.close()
        for patch in self._patches:
            patch.stop()

    # -- its client --------------------------------------------------------------------------------

    def carry_out(self, command: c.Command) -> bool:
        if isinstance(command, c.ConnectAdvisor):
            self.later(0.1, self.subscribe)
        elif isinstance(command, c.TellAdvisor):
            self.world.counts[f"told {command.call} {command.code}"] += 1
            stream = self.stream
            self.later(ON_THE_WAY, lambda: self.clock.spawn(self.hears, command, stream))
        else:
            return False
        return True

    def subscribe(self) -> None:
        if self.world.over:
            return
        self.stream = stream = self.clock.queue.Queue()
        stream.put = lambda signal: self.later(ON_THE_WAY, lambda: self.sends(stream, signal))
        self.machine.begin(stream)
        self.connected = True
        self.world.deliver(e.AdvisorConnected(True))

    def sends(self, stream: object, signal: Any) -> None:
        if stream is not self.stream or self.world.over:
            return
        if signal is None:
            self.stream, self.connected = None, False
            self.world.deliver(e.AdvisorConnected(False))
            self.later(SOON, self.subscribe)
            return
        event = event_of(signal, "job")
        self.said.append(event.kind)
        self.arrives(event)

    def hears(self, command: c.TellAdvisor, stream: object) -> None:
        if command.call == REPEATED:
            self.machine.reported(dict(command.ranks))
        elif stream is self.stream and stream is not None:
            self.machine.report(command.call, request_of(command, "job", interface.CLASSES), 10.0)


@dataclass
class Beside(World):
    trouble: float = 0.0
    faults: list[Fault] = field(default_factory=list)
    shape: tuple[int, int] | None = None
    strategies: tuple[str, ...] = LADDER

    def __post_init__(self) -> None:
        self.dice = dice = random.Random(self.seed)
        nodes, self.per_node = self.shape = self.shape or dice.choice(SHAPES)
        if not self.faults:
            at = dice.uniform(*FIRST)
            for _ in range(dice.choice([2, 2, 2, 3, 4, 6])):
                rank, lasts = dice.randrange(nodes * self.per_node), dice.uniform(*PODS)
                self.faults.append(Fault(at, dice.choice(KINDS), rank, lasts))
                at += dice.choice([dice.uniform(0.0, 2.0), dice.uniform(*APART)])
        self.pods = 0
        self.most_lost = 0  # nodes, at one moment
        self.lost_fresh = False
        self.unnoticed: set[str] = set()  # agents that have just gone
        self.fresh: set[str] = set()  # pods that have taken a node over, and trained no step yet
        super().__post_init__()
        self.sets = 1

    def configure(self) -> Settings:
        times = {"reschedule": 270.0, "take_over": 60.0, "prepare": 60.0, "pause_all": 60.0}
        assert self.shape is not None
        return Settings(
            *self.shape, self.strategies, "ignore", advisor=self.clusterd, advice=60.0, **times
        )

    def length(self) -> int:
        return round(self.faults[-1].at / 0.3) + AFTER

    def make_fault_center(self) -> FaultCenter:
        return FaultCenter(self) if self.clusterd == "off" else RealClusterD(self, self.dice)

    def begin(self) -> None:
        for node in self.nodes:
            self.cluster.start(node)
        for fault in self.faults:
            self.after(fault.at, self.striking(fault))

    def run(self) -> str:
        try:
            outcome = super().run()
        finally:
            if isinstance(self.fault_center, RealClusterD):
                self.fault_center.close()
        assert outcome == "well" or not self.holders, f"{outcome}, and {self.holders} had the state"
        return outcome

    def carry_out(self, command: c.Command) -> None:
        if isinstance(command, to_agent.Fence):
            self.replace(command.agent, 10.0)
            if self.unnoticed - {command.agent}:  # both are gone at one moment
                self.most_lost = 2
        elif isinstance(command, to_agent.TakeOver):
            self.fresh.add(command.agent)
        elif isinstance(command, c.Closed):
            self.fresh.clear()
        elif isinstance(command, to_agent.GiveUp | to_agent.End):
            known = self.most_lost > 1 or "times and died again" in command.reason
            known |= "left no record" in command.reason and self.lost_fresh
            here = [n.agent for n in self.nodes if not n.gone and not known]
            self.holders = [agent for agent in here if agent not in self.fresh]
        super().carry_out(command)
        if self.over and isinstance(self.fault_center, RealClusterD):
            self.fault_center.clock.close()
        if isinstance(command, to_agent.TakeOver) and self.clusterd != "off":
            first = command.node * self.per_node
            self.fault_center.machine.repaired(*range(first, first + self.per_node))

    # -- faults ------------------------------------------------------------------------------------

    def striking(self, fault: Fault) -> Callable[[], None]:
        def strike() -> None:
            rank = self.ranks[fault.rank]
            node = self.nodes[rank.node]
            if self.over or node.gone:
                return
            self.trace.append(f"{self.now:9.3f} fault: {fault}")
            if fault.kind == "kill":
                self.training.die(rank, "was killed by SIGKILL")
            elif fault.kind == "page":
                self.nemesis.lose_page(rank, 0)
                if self.clusterd != "off":
                    self.fault_center.machine.hardware({fault.rank: 0}, (rank.node,))
                    mended = self.fault_center.machine.repaired
                    self.after(fault.lasts, lambda: mended(fault.rank))
            elif fault.kind == "device" and self.clusterd != "off":
                ranks = {r.number: 1 for r in node.ranks}
                self.fault_center.machine.hardware(ranks, (rank.node,))
            elif fault.kind == "device":
                self.after(WAITS["INITIAL"], lambda: self.lose(node, fault.lasts))
            else:
                self.lose(node, fault.lasts)

        return strike

    def lose(self, node: Node, lasts: float) -> None:
        if not self.over and not node.gone:
            self.replace(node.agent, lasts)
            self.lost_fresh |= node.agent in self.fresh
            self.cluster.vanish(node)
            self.most_lost = max(self.most_lost, sum(n.gone for n in self.nodes))
            self.cluster._notice(node, NOTICED)
            agent = node.agent
            self.unnoticed.add(agent)
            self.after(NOTICED, lambda: self.unnoticed.discard(agent))

    def replace(self, agent: str, after: float) -> None:
        """The pod of a node is gone, or about to go: the next one runs after a while."""
        if any(node.agent == agent for node in self.nodes):
            self.pods += 1
            name = f"pod-{self.pods}"
            self.after(after, lambda: self.cluster.standby(name) if not self.over else None)

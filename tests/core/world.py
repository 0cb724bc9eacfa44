"""Simulates a job as the coordinator sees it: ranks that respond to commands late, twice or not at
all, lose memory, hang, and die at any moment; and operators who pause the job and let it continue.

Discrete events on a simulated clock; everything is drawn from one seed. A node's messages arrive in
order, as in a real job. `World.run` plays a job to its end; `invariants.py` has the checks at every
command.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from taskd.core import commands as c
from taskd.core import events as e
from taskd.core.coordinator import Coordinator
from taskd.core.election.election import STANDBY
from taskd.core.settings import Settings
from taskd.messages import from_agent, to_agent, to_operator, to_rank
from taskd.messages.values import Preparation, Spans
from taskd.mindcluster import levels
from taskd.mindcluster.clusterd.deciding.signals import ClusterD
from tests.core import drawn, shrinking
from tests.core.actors import GUARDED, UNHEARD, Former, Node, Rank
from tests.core.agents import Agents
from tests.core.chains import Chains
from tests.core.cluster import Cluster
from tests.core.electorate import Electorate
from tests.core.fault_center import FaultCenter
from tests.core.handover import Handover
from tests.core.harm import Harm
from tests.core.invariants import Invariants
from tests.core.nemesis import Nemesis
from tests.core.operators import Operators
from tests.core.probes import Probes
from tests.core.training import Training
from tests.core.wire import Wire


@dataclass
class World:
    seed: int
    trouble: float = 1.0  # scales every probability of something going wrong
    moves: bool = False  # nodes move, and little else happens, but that managers are killed
    clusterd: str = "off"  # its role; in lead and follow it has a part
    limited: bool = False  # a container may have two faults, at most
    elastic: bool = False  # nodes are lost and may not be replaced: replicas leave, and come back
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.chance = chance = random.Random(self.seed)
        self.settings = self.configure()
        nodes, per_node = self.settings.nodes, self.settings.ranks_per_node
        self.now = 0.0
        self.queue: list[tuple[float, int, Callable[[], None]]] = []
        self.order = 0
        self.manager = 0  # number of the current manager
        self.electorate = Electorate(self)
        self.operators, self.cluster = Operators(self), Cluster(self)
        self.handover = Handover(self)
        self.fault_center = self.make_fault_center()
        self.chains, self.shrinking = Chains(self), shrinking.Shrinking(self)
        self.training, self.agents, self.probes = Training(self), Agents(self), Probes(self)
        self.coordinator = Coordinator(self.settings, self.electorate.election(), ClusterD)
        self._due: tuple[float | None] | None = None  # its deadline, if it is known
        self.total = self.length()
        # replica sets: on each node are ranks of both, more than one of each if it is the only node
        self.sets = 2 if self.seed % 2 and per_node >= (4 if nodes == 1 else 2) else 1
        if self.elastic:
            self.sets = shrinking.sets(chance, self.settings)
        numbers = range(nodes * per_node)
        self.members = [Spans.of(numbers[of :: self.sets]) for of in range(self.sets)]
        shards = self.elastic and chance.random() < 0.05
        self.inelastic = "w exists on one rank only" if shards else ""
        self.done: set[int] = set()  # steps that all shares of have been computed
        self.dumped: dict[str, set[int]] = {}  # the data ranks whose records are in each dump
        self.ranks = [
            Rank(n, n // per_node, replica_set=n % self.sets) for n in range(nodes * per_node)
        ]
        self.nodes = [
            Node(n, self.ranks[n * per_node : (n + 1) * per_node], agent=f"agent-{n}")
            for n in range(nodes)
        ]
        self.standbys: set[str] = set()  # waiting, preparing for a node, or taking one over
        self.prepared: dict[str, to_agent.Prepare] = {}  # standby -> its order
        self.ready: set[str] = set()  # of these, those whose ranks wait for orders
        # standbys that have stood down by themselves -> the move that an earlier manager ordered
        self.broken_off: dict[str, Preparation] = {}
        self.formers: dict[int, Former] = {}  # by node
        # ranks whose device is being reset -> the agent whose device it is
        self.resets: dict[int, str] = {}
        self.told_resets: dict[int, str] = {}  # of these, what the manager was told
        self.fenced: set[str] = set()
        self.jam = 0  # generations whose collectives never end, including the current one
        self.jammed = 0  # the current generation
        self.jam_from = 0  # first step without an end
        self.asked = 0  # number of requests by operators
        self.trace: list[str] = []
        self.over = False
        self.orders = 0  # number of the last order
        # how many connections will break
        self.breaks = chance.choice([0, 0, 1, 3, 20]) if self.trouble else 0
        # deliveries that wait for a stopped manager
        self.asleep: list[Callable[[], None]] | None = None
        self.woke = 0.0
        self.wires = [Wire(self, node) for node in self.nodes]
        self.invariants = Invariants(self)
        self.nemesis, self.harm = Nemesis(self), Harm(self)

    def configure(self) -> Settings:
        return drawn.settings(self)

    def make_fault_center(self) -> FaultCenter:
        return FaultCenter(self)

    def length(self) -> int:
        """Steps of the job."""
        long = self.moves or self.elastic
        return self.chance.randint(30, 60) if long else self.chance.randint(3, 12)

    def after(self, delay: float, action: Callable[[], None]) -> None:
        self.order += 1
        heapq.heappush(self.queue, (self.now + delay, self.order, action))

    def later(self, rank: Rank, delay: float, action: Callable[[], None]) -> None:
        """Let a rank act after `delay`, if its process is still there."""
        self.after(delay, self.training.alive(rank, action))

    def tell(self, rank: Rank, kind: Any, *fields: Any) -> None:
        """Send what a rank, or its agent, says of it."""
        self.say(self.nodes[rank.node], kind(rank.number, rank.incarnation, *fields))

    def likely(self, probability: float) -> bool:
        return self.chance.random() < probability * self.trouble

    def run(self) -> str:
        """Play the job to its end; return how it ended."""
        self.begin()
        return self._play()

    def begin(self) -> None:
        """Start the nodes; what is to happen to them."""
        drawn.begin(self)

    def _play(self) -> str:
        for _ in range(60_000):
            if self.over and not self.queue:
                self.invariants.at_the_end()
                return self.outcome
            due = self._deadline()
            # messages sent meanwhile are handled before deadlines are checked
            if due is not None and self.woke:
                due = max(due, self.woke + 1.0)
            if (
                due is not None
                and self.asleep is None
                and (not self.queue or due <= self.queue[0][0])
            ):
                self.now = max(self.now, due)
                self.deliver(e.Tick())
                later = self.coordinator.deadline()
                if later is not None and later <= self.now:  # a probe's end may make the next due
                    self.deliver(e.Tick())
                    later = self.coordinator.deadline()
                left = f"a tick at {self.now} leaves the deadline at {later}"
                assert later is None or later > self.now, left
                self.counts["ticks"] += 1
            elif self.queue:
                self.now, _, action = heapq.heappop(self.queue)
                action()
            elif all(n.gone for n in self.nodes):
                return "no agent is left"  # and no agent has registered with a new manager
            elif not any(r.alive or r.begun for r in self.ranks):
                return "the launcher's affair"  # all died before the first protect()
            else:
                raise AssertionError("stuck: no event and no deadline is left")
        raise AssertionError("the job does not end")

    def _deadline(self) -> float | None:
        """The coordinator's, which nothing but an event changes."""
        if self._due is None:
            self._due = (self.coordinator.deadline(),)
        return self._due[0]

    def say(self, node: Node, event: e.Event) -> None:
        """Send an event from a node to the manager."""
        if node.gone or node.cut:
            return
        agent, manager = node.agent, self.manager
        self.wires[node.number].say(event)
        if isinstance(event, GUARDED) and self.likely(0.1):  # once more, and late
            self.counts["repeated"] += 1
            again = self.chance.choice([0.1, 0.5, 3.0])
            # a repeated message of dead processes is detected by its number before it gets here
            epoch = node.epoch
            self.after(
                again,
                lambda: (
                    self.hear(event, agent)
                    if (manager, epoch, agent) == (self.manager, node.epoch, node.agent)
                    else None
                ),
            )

    def sleep(self) -> None:
        """Stop the manager for a while: messages wait, and agents close silent connections."""
        if self.asleep is not None or self.over:
            return
        self.counts["manager stood still"] += 1
        self.asleep, takes = [], self.chance.choice([0.1, 1.0, 3.0, 10.0, 30.0])
        manager = self.manager
        self.after(takes, lambda: self.wake() if manager == self.manager else None)
        for wire in self.wires:
            if takes > 2.5:
                self.after(self.chance.uniform(2.0, 2.5), wire.lose)

    def wake(self) -> None:
        arrived, self.asleep, self.woke = self.asleep or [], None, self.now
        for arrive in arrived:
            arrive()

    def hear(self, event: e.Event, agent: str) -> None:
        if agent not in self.fenced:
            self.deliver(event)

    def deliver(self, event: e.Event) -> None:
        if self.over and not self.coordinator.job.over:
            return  # there was no majority
        if self.asleep is not None:
            self.asleep.append(
                lambda m=self.manager: self.deliver(event) if m == self.manager else None
            )
            return
        if not isinstance(event, e.Tick):
            self.trace.append(f"{self.now:9.3f} {event}")
        if isinstance(event, from_agent.AgentJoined):
            self.publish(event)
        lost = self.coordinator.job.topology.is_lost
        if isinstance(event, e.DeviceLevel) and not lost(event.rank):  # of a lost node it is void
            self.told_resets[event.rank] = event.resetting
        was_over = self.coordinator.job.over
        self.invariants.before(event)
        commands, self._due = self.coordinator.step(event, self.now), None
        assert not was_over or all(
            isinstance(x, to_operator.Answer | c.Refuse) for x in commands
        ), "a command after the end"
        self.invariants.ordered(commands)
        for command in commands:
            self.trace.append(f"{self.now:9.3f}     {command}")
            if isinstance(command, c.Note) and "moves, as ordered by the previous" in command.text:
                self.counts["move taken up"] += 1
            self.invariants.check(command)
            if self.nemesis.kills_the_manager(command):
                return
            self.carry_out(command)
            if self.elastic:
                self.harm.at(command)
        self.invariants.after(commands)

    def carry_out(self, command: c.Command) -> None:
        self.counts[type(command).__name__] += 1
        if isinstance(command, to_agent.End | to_agent.GiveUp):
            self.over = True
            self.outcome = (
                "gave up"
                if isinstance(command, to_agent.GiveUp) or self.counts["GiveUp"]
                else "well"
                if command.ok
                else "failed"
            )
        elif isinstance(command, c.Closed):
            self.counts[f"closed by {command.strategy}"] += 1
        elif isinstance(command, c.Admit):
            self.cluster.admitted(command)
        elif isinstance(command, to_agent.Fence):
            self.cluster.fence(command.agent)
        elif isinstance(command, to_agent.TakeOver):
            for rank in command.ranks:
                self.told_resets.pop(rank, None)  # another machine
            self.cluster.take_over(command)
        elif isinstance(command, to_agent.Prepare):
            self.cluster.prepare(command)
        elif isinstance(command, to_agent.StandDown):
            self.cluster.stand_down(command.agent, command.node)
        elif self.fault_center.carry_out(command):
            pass
        elif not self.electorate.carry_out(command) and not isinstance(command, UNHEARD):
            late = isinstance(
                command,
                to_rank.Pause | to_rank.Continue | to_agent.AskSteps | to_rank.ProbeProgress,
            )
            for node in self.nodes:
                if isinstance(command, to_agent.KeepRecords) and command.node != node.number:
                    continue
                if node.gone or node.cut or (late and node.joined != self.manager):
                    continue
                if isinstance(command, to_rank.Interrupt) and self.likely(0.02):
                    for rank in node.ranks:
                        rank.deaf = True
                    continue
                self.wires[node.number].order(command)

    def publish(self, event: from_agent.AgentJoined) -> None:
        """Tell a manager which devices are being reset, before it learns of the node."""
        for rank in event.ranks:
            resetting = "it is being reset" if self.resets.get(rank) == event.agent else ""
            known = self.coordinator.job.ranks.get(rank)
            if known is not None and resetting != known.resetting:
                self.deliver(levels.event(rank, None, "as its machine says", "", resetting))

    def node_of(self, agent: str) -> int:
        return next((n.number for n in self.nodes if n.agent == agent), STANDBY)

    def registers_again(self, agent: str) -> None:
        """Let an agent register again."""
        delay, manager = self.chance.uniform(0.001, 0.3), self.manager
        for node in self.nodes:
            if node.agent == agent and not node.gone and not node.cut:
                self.after(delay, self.announcing(node))
        for number, former in self.formers.items():
            if former.node["agent"] == agent and former.manager != manager:
                self.after(delay, lambda n=number, f=former: self.handover.announce(n, f))
        if agent in self.standbys:
            self.after(
                delay,
                lambda: (
                    self.cluster.standby(agent)  # unless it has a node or is lost by now
                    if manager == self.manager and agent in self.standbys
                    else None
                ),
            )

    def connecting(self, agent: str) -> Callable[[], None]:
        manager = self.manager

        def connect() -> None:
            if manager == self.manager and self.electorate.reachable(agent):
                self.electorate.connect(agent)

        return connect

    def announcing(self, node: Node) -> Callable[[], None]:
        """Return an action: the node's agent registers with the current manager, unless agent or
        manager has changed by then."""
        agent, manager = node.agent, self.manager

        def announce() -> None:
            if (agent, manager) == (node.agent, self.manager) and agent not in self.fenced:
                self.cluster.announce(node)

        return announce

    def new_manager(self) -> None:
        self.manager += 1
        # who was cut off when it was fenced does not know, nor does the next manager
        self.fenced -= {n.agent for n in self.nodes if n.cut and not n.gone}
        self.told_resets.clear()
        self.handover.new_manager()
        self.invariants.new_manager()
        for node in self.nodes:
            if node.passing and not node.gone:
                node.passing = False
                self.agents.stand(node, None)
        self.coordinator = Coordinator(self.settings, self.electorate.election(), ClusterD)
        self._due = None
        self.asleep = None
        for wire in self.wires:
            wire.begin()
        for node in self.nodes:
            node.received = self.now  # messages in flight to the agents are lost too
        formers = [f.node["agent"] for f in self.formers.values() if not f.lost]
        for agent in [*(n.agent for n in self.nodes), *formers, *sorted(self.standbys)]:
            self.after(self.chance.uniform(0.05, 1.0), self.connecting(agent))
        manager = self.manager
        self.after(60.0, lambda: self.no_majority() if manager == self.manager else None)
        # an operator whose continue request succeeded repeats it to the new manager
        self.after(5.0, self.operators.go_on)

    def no_majority(self) -> None:
        """End the job if no manager is in charge: agents do not wait forever."""
        if not self.over and not self.coordinator.election.in_charge:
            self.over, self.outcome = True, "no majority"

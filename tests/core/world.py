"""A job as the coordinator sees it: nodes with ranks that answer to commands, late, twice or not at
all, lose memory, hang, and die at any moment; and operators who stop it between two steps and let
it go on.

Discrete events on a clock of its own; everything is drawn from one seed. Messages of a node arrive
in order, as in the real one. `World.run` plays a job to its end; `invariants.py` has what must hold
at every command.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from taskd.core import commands as c
from taskd.core import events as e
from taskd.core.coordinator import Coordinator
from taskd.core.election.election import STANDBY
from taskd.core.settings import Settings
from taskd.messages import from_agent, to_agent, to_operator, to_rank
from tests.core.actors import (
    GUARDED,
    UNHEARD,
    Former,
    Node,
    Rank,
)
from tests.core.agents import Agents
from tests.core.cluster import Cluster
from tests.core.electorate import Electorate
from tests.core.invariants import Invariants
from tests.core.nemesis import Nemesis
from tests.core.operators import Operators
from tests.core.training import Training
from tests.core.wire import Wire


@dataclass
class World:
    seed: int
    trouble: float = 1.0  # scales every probability of something going wrong
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.chance = chance = random.Random(self.seed)
        nodes = chance.choice([1, 1, 2, 3])
        per_node = chance.randint(2 if nodes == 1 else 1, 8 // nodes)
        both, three = (
            ("retry", "recover-in-place", "exit"),
            ("retry", "recover-in-place", "recover", "exit"),
        )
        ladders = [
            both,
            both,
            three,
            three,
            ("recover-in-place", "exit"),
            ("retry", "exit"),
            ("retry", "dump", "exit"),
        ]
        ladders += [
            ("recover", "exit"),
            ("recover-in-place", "recover", "dump", "exit"),
            ("dump", "exit"),
        ]
        ladder = chance.choice(ladders)
        sub_healthy = chance.choice([*["move"] * 8, "ignore", "save", "end"])
        times = {"reschedule": 60.0, "take_over": 10.0, "prepare": 20.0, "pause_all": 60.0}
        self.settings = Settings(nodes, per_node, ladder, sub_healthy, **times)
        self.manager = 0  # how many there have been
        self.electorate = Electorate(self)
        self.operators, self.cluster = Operators(self), Cluster(self)
        self.training, self.agents = Training(self), Agents(self)
        self.coordinator = Coordinator(self.settings, self.electorate.election())
        self.total = chance.randint(3, 12)
        self.ranks = [Rank(n, n // per_node) for n in range(nodes * per_node)]
        self.nodes = [
            Node(n, self.ranks[n * per_node : (n + 1) * per_node], agent=f"agent-{n}")
            for n in range(nodes)
        ]
        self.standbys: set[str] = set()  # that wait, get ready for a node, or take one over
        self.prepared: dict[
            str, to_agent.Prepare
        ] = {}  # what standbys have been told to be ready for
        self.formers: dict[int, Former] = {}  # by node
        self.fenced: set[str] = set()
        self.now = 0.0
        self.queue: list[tuple[float, int, Callable[[], None]]] = []
        self.order = 0
        self.jam = 0  # generations whose collectives never end, the present one included
        self.jammed = 0  # the present one
        self.jam_from = 0  # this step
        self.asked = 0  # requests of operators
        self.trace: list[str] = []
        self.over = False
        self.orders = 0  # number of the last
        # connections that will
        self.breaks = chance.choice([0, 0, 1, 3, 20]) if self.trouble else 0
        # what waits for a manager that stands still
        self.asleep: list[Callable[[], None]] | None = None
        self.woke = 0.0
        self.wires = [Wire(self, node) for node in self.nodes]
        self.invariants = Invariants(self)
        self.nemesis = Nemesis(self)

    def after(self, delay: float, action: Callable[[], None]) -> None:
        self.order += 1
        heapq.heappush(self.queue, (self.now + delay, self.order, action))

    def likely(self, probability: float) -> bool:
        return self.chance.random() < probability * self.trouble

    def run(self) -> str:
        """Play to the end; how it ended."""
        for node in self.nodes:
            self.cluster.start(node)
        for _ in range(self.chance.choice([0, 0, 1, 2, 3])):
            self.after(self.chance.uniform(0.5, 20.0), self.operators.pause)
        for _ in range(self.chance.choice([0, 0, 1, 2]) if self.trouble else 0):
            self.after(
                self.chance.choice([4.0, self.chance.uniform(2.0, 15.0)]),
                self.operators.sub_healthy,
            )
        for _ in range(self.chance.choice([0, 0, 0, 1, 3]) if self.trouble else 0):
            self.after(self.chance.uniform(0.5, 20.0), self.operators.device)
        for number in range(self.chance.choice([0, 1, 2, 3])):
            self.after(
                self.chance.choice([0.1, 0.1, self.chance.uniform(1.0, 60.0)]),
                lambda n=number: self.cluster.standby(f"standby-{n}"),
            )
        for _ in range(60_000):
            if self.over and not self.queue:
                self.invariants.at_the_end()
                return self.outcome
            due = self.coordinator.deadline()
            # what was sent meanwhile is heard before deadlines are judged
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
                assert later is None or later > self.now, (
                    f"a tick at {self.now} leaves the deadline at {later}"
                )
                self.counts["ticks"] += 1
            elif self.queue:
                self.now, _, action = heapq.heappop(self.queue)
                action()
            elif all(n.gone for n in self.nodes):
                return "nobody is left"  # and the manager is a new one that has heard of nobody
            elif not any(r.alive or r.begun for r in self.ranks):
                return "the launcher's affair"  # all died before the first protect()
            else:
                raise AssertionError("stuck: nobody does anything, nothing is waited for")
        raise AssertionError("the job does not end")

    def say(self, node: Node, event: e.Event) -> None:
        """From a node to the manager."""
        if node.gone or node.cut:
            return
        agent, manager = node.agent, self.manager
        self.wires[node.number].say(event)
        if isinstance(event, GUARDED) and self.likely(0.1):  # once more, and late
            self.counts["repeated"] += 1
            again = self.chance.choice([0.1, 0.5, 3.0])
            # a repeated message of processes that are gone is known by its number, before it comes
            # here
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
        """It stands still for a while. What arrives waits; connections are ended when nothing comes
        over them."""
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
        if self.asleep is not None:
            self.asleep.append(
                lambda m=self.manager: self.deliver(event) if m == self.manager else None
            )
            return
        if not isinstance(event, e.Tick):
            self.trace.append(f"{self.now:9.3f} {event}")
        if isinstance(event, from_agent.AgentJoined):
            self.nodes[event.node].joined = self.manager
        was_over = self.coordinator.job.over
        self.invariants.before(event)
        commands = self.coordinator.step(event, self.now)
        assert not was_over or all(
            isinstance(x, to_operator.Answer | c.Refuse) for x in commands
        ), "a command after the end"
        for command in commands:
            self.trace.append(f"{self.now:9.3f}     {command}")
            self.invariants.check(command)
            self.carry_out(command)
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
        elif isinstance(command, to_agent.Fence):
            self.cluster.fence(command.agent)
        elif isinstance(command, to_agent.TakeOver):
            self.cluster.take_over(command)
        elif isinstance(command, to_agent.Prepare):
            self.cluster.prepare(command)
        elif isinstance(command, to_agent.StandDown):
            self.cluster.stand_down(command.agent, command.node)
        elif not self.electorate.carry_out(command) and not isinstance(command, UNHEARD):
            late = isinstance(
                command,
                to_rank.Pause | to_rank.Continue | to_agent.AskSteps | to_rank.ProbeProgress,
            )
            for node in self.nodes:
                if node.gone or node.cut or (late and node.joined != self.manager):
                    continue
                if isinstance(command, to_rank.Interrupt) and self.likely(0.02):
                    for rank in node.ranks:
                        rank.deaf = True
                    continue
                self.wires[node.number].order(command)

    def node_of(self, agent: str) -> int:
        return next((n.number for n in self.nodes if n.agent == agent), STANDBY)

    def registers_again(self, agent: str) -> None:
        """It says again what it knows."""
        delay, manager = self.chance.uniform(0.001, 0.3), self.manager
        for node in self.nodes:
            if node.agent == agent and not node.gone and not node.cut:
                self.after(delay, self.announcing(node))
        if agent in self.standbys:
            self.after(
                delay, lambda: self.cluster.standby(agent) if manager == self.manager else None
            )

    def connecting(self, agent: str) -> Callable[[], None]:
        manager = self.manager

        def connect() -> None:
            if manager == self.manager and self.electorate.reachable(agent):
                self.electorate.connect(agent)

        return connect

    def announcing(self, node: Node) -> Callable[[], None]:
        """Its agent says what it knows, to the present manager, unless another one has the node
        by then."""
        agent, manager = node.agent, self.manager

        def announce() -> None:
            if (agent, manager) == (node.agent, self.manager) and agent not in self.fenced:
                self.cluster.announce(node)

        return announce

    def new_manager(self) -> None:
        self.manager += 1
        self.prepared.clear()
        for number, former in list(self.formers.items()):
            if self.nodes[number].agent == former.assignee and not self.nodes[number].gone:
                self.standbys.add(former.assignee)  # it stands down
            self.cluster.put_back(number)
        for node in self.nodes:
            if node.passing and not node.gone:
                node.passing = False
                self.agents.stand(node, None)
        self.coordinator = Coordinator(self.settings, self.electorate.election())
        self.invariants.new_manager()
        self.asleep = None
        for wire in self.wires:
            wire.begin()
        for node in self.nodes:
            node.received = self.now  # what was under way to the agents is lost too
        for agent in [*(n.agent for n in self.nodes), *sorted(self.standbys)]:
            self.after(self.chance.uniform(0.05, 1.0), self.connecting(agent))
        manager = self.manager
        self.after(60.0, lambda: self.no_majority() if manager == self.manager else None)
        # somebody who was told that the ranks go on looks again whether they do
        self.after(5.0, self.operators.go_on)

    def no_majority(self) -> None:
        """Agents do not wait for a manager forever."""
        if not self.over and not self.coordinator.election.in_charge:
            self.over, self.outcome = True, "no majority"

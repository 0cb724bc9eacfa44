"""A job as the coordinator sees it: nodes with ranks that answer to commands, late, twice or not at
all, lose memory, hang, and die at any moment; and operators who stop it between two steps and let
it go on.

Discrete events on a clock of its own; everything is drawn from one seed. Messages of a node arrive
in order, as in the real one. `World.run` plays a job to its end; `laws.py` has what must hold at
every command.
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
from taskd.core.snapshots import STANDING as STANDING_RECORD
from taskd.core.snapshots import after_steps
from taskd.messages import from_agent, from_operator, from_rank, to_agent, to_operator, to_rank
from taskd.messages.values import Position
from taskd.mindcluster import levels
from taskd.mindcluster.levels import TABLE, Level
from tests.core.electorate import Electorate
from tests.core.laws import Laws
from tests.core.misfortune import Misfortune
from tests.core.wire import Wire

SETUP, TRAINING, HELD, STANDING, FINISHED, ENDED = (
    "setup",
    "training",
    "held",
    "standing",
    "finished",
    "ended",
)
# makes no progress: and says nothing any more, and still answers roll calls
HUNG, LOOPING = "hung", "looping"
COMPUTING, UPDATED, COMMITTED = 0, 1, 2
PATIENCE = 15.0  # seconds after which the collective library gives up
LIMIT = 4.0  # seconds that a rank may stay in one place
FIRST = 600.0  # in its first step
GUARDED = (
    from_agent.RankDied
    | from_rank.RankPaused
    | from_agent.RankBusy
    | from_rank.RankReady
    | from_rank.RankRebuilt
    | from_rank.RankRestored
    | from_rank.StepCommitted
)

# orders that nobody in here carries out
UNHEARD = (
    c.Note | to_operator.Answer | to_agent.KeepRecords | c.Admit | c.Refuse | c.Challenge | c.Resign
)


@dataclass
class Rank:
    number: int
    node: int
    incarnation: int = 0
    alive: bool = True
    mode: str = SETUP
    blank: bool = False  # a replacement without state
    step: int = 0
    stage: int = COMPUTING
    entered: bool = False  # its part of the step is done, it waits in the collective
    clean: bool = True  # what is in memory is the state at the start of `step`
    spoiled: bool = False  # a page was lost since the last restore: it does not train
    told: bool = False  # the first commit after a resume
    paused: int = 0
    era: int = 0  # number of the pause that the present communicators were built in
    rebuilding: int = 0
    left: Position | None = None
    immortal: bool = False
    recorded: int = -1  # this step's record is final already: the rank was held before it
    begun: bool = False  # its loop
    since: float = 0.0  # when the step was entered
    beat: float = 0.0  # when it last made progress
    turn: int = 0  # numbers what it does next: the last that was decided
    steps: int = 0  # committed by this process
    slow: float = 0.0  # until then it is in user code, within its limit
    cpu: float = 0.0
    bad: int = 0  # a memory page that fails whenever the step is computed
    unfit: str = ""
    record: Position | None = None  # what another node knows of it, when its own is lost
    deaf: bool = False  # it, or a message to or from it, was late or lost in an incident
    died: float = 0.0
    quit: bool = False  # its script has ended by itself, too early
    # what this process has said against itself
    evidence: Counter[str] = field(default_factory=Counter)

    def position(self) -> Position:
        committed = self.stage == COMMITTED  # between two steps: `step` is the next one
        kept = after_steps(self.step - committed, committed=committed)
        if committed and self.recorded == self.step:
            kept.write(self.step, STANDING_RECORD)
        clean = self.step if self.stage != UPDATED and self.clean else None
        return kept.position(self.step, clean)

    def overdue(self, now: float) -> bool:
        stays = self.mode in (TRAINING, HUNG, LOOPING)
        return stays and now >= max(self.beat + (LIMIT if self.steps else FIRST), self.slow) - 1e-9


@dataclass
class Node:
    number: int
    ranks: list[Rank]
    epoch: int = 0
    generation: int = 0
    protected: bool = False
    pause: int = 0
    hold: int | None = None  # ranks stop before this step
    passing: bool = False  # as long as the present manager is there
    gone: bool = False  # nobody is there
    cut: bool = False  # nothing is heard of it, and it hears nothing
    agent: str = ""
    sent: float = 0.0  # arrival of the last message, either way
    received: float = 0.0
    joined: int = -1  # the manager that has heard of it


@dataclass
class Former:
    """What a node was before it has moved, as long as it may be put back."""

    assignee: str
    node: dict[str, Any]
    ranks: list[dict[str, Any]]
    lost: bool = False


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
        times = {"reschedule": 60.0, "take_over": 10.0, "prepare": 20.0, "stand": 60.0}
        self.settings = Settings(nodes, per_node, ladder, sub_healthy, **times)
        self.manager = 0  # how many there have been
        self.electorate = Electorate(self)
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
        self.laws = Laws(self)
        self.misfortune = Misfortune(self)

    # -- the clock

    def after(self, delay: float, action: Callable[[], None]) -> None:
        self.order += 1
        heapq.heappush(self.queue, (self.now + delay, self.order, action))

    def likely(self, probability: float) -> bool:
        return self.chance.random() < probability * self.trouble

    def run(self) -> str:
        """Play to the end; how it ended."""
        for node in self.nodes:
            self.start(node)
        for _ in range(self.chance.choice([0, 0, 1, 2, 3])):
            self.after(self.chance.uniform(0.5, 20.0), self.hold)
        for _ in range(self.chance.choice([0, 0, 1, 2]) if self.trouble else 0):
            self.after(self.chance.choice([4.0, self.chance.uniform(2.0, 15.0)]), self.sub_healthy)
        for _ in range(self.chance.choice([0, 0, 0, 1, 3]) if self.trouble else 0):
            self.after(self.chance.uniform(0.5, 20.0), self.device)
        for number in range(self.chance.choice([0, 1, 2, 3])):
            self.after(
                self.chance.choice([0.1, 0.1, self.chance.uniform(1.0, 60.0)]),
                lambda n=number: self.standby(f"standby-{n}"),
            )
        for _ in range(60_000):
            if self.over and not self.queue:
                self.laws.at_the_end()
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

    # -- the wire

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

    # -- the manager's process

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
        self.laws.before(event)
        commands = self.coordinator.step(event, self.now)
        assert not was_over or all(
            isinstance(x, to_operator.Answer | c.Refuse) for x in commands
        ), "a command after the end"
        for command in commands:
            self.trace.append(f"{self.now:9.3f}     {command}")
            self.laws.check(command)
            self.carry_out(command)
        self.laws.after(commands)

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
            self.fence(command.agent)
        elif isinstance(command, to_agent.TakeOver):
            self.take_over(command)
        elif isinstance(command, to_agent.Prepare):
            self.prepare(command)
        elif isinstance(command, to_agent.StandDown):
            self.stand_down(command.agent, command.node)
        elif not self.electorate.carry_out(command) and not isinstance(command, UNHEARD):
            late = isinstance(
                command, to_rank.Hold | to_rank.Continue | to_agent.AskSteps | to_rank.RollCall
            )
            for node in self.nodes:
                if node.gone or node.cut or (late and node.joined != self.manager):
                    continue
                if isinstance(command, to_rank.Pause) and self.likely(0.02):
                    for rank in node.ranks:
                        rank.deaf = True
                    continue
                self.wires[node.number].order(command)

    def node_of(self, agent: str) -> int:
        return next((n.number for n in self.nodes if n.agent == agent), STANDBY)

    def asked_who(self, agent: str) -> None:
        """It says again what it knows."""
        delay, manager = self.chance.uniform(0.001, 0.3), self.manager
        for node in self.nodes:
            if node.agent == agent and not node.gone and not node.cut:
                self.after(delay, self.announcing(node))
        if agent in self.standbys:
            self.after(delay, lambda: self.standby(agent) if manager == self.manager else None)

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
                self.announce(node)

        return announce

    # -- operators

    def hold(self) -> None:
        self.asked += 1
        self.request(from_operator.HoldRequested(f"hold-{self.asked}"))
        self.after(self.chance.choice([0.01, 0.5, 3.0, 20.0]), self.go_on)

    def go_on(self) -> None:
        """Until somebody has said that the ranks go on, or there is nobody."""
        self.asked += 1
        request = f"continue-{self.asked}"
        self.request(from_operator.ContinueRequested(request))
        self.after(1.0, lambda: None if self.over or request in self.laws.done else self.go_on())

    def sub_healthy(self) -> None:
        self.asked += 1
        self.request(
            from_operator.NodeSubHealthy(
                f"move-{self.asked}", self.chance.randrange(len(self.nodes)), "it is hot"
            )
        )

    def device(self) -> None:
        """A fault code of any level on some rank's device."""
        level = self.chance.choice(list(Level))
        self.counts[level.word] += 1
        unusable = "" if TABLE[level].usable else "it is separated"
        rank = self.chance.choice(self.ranks)
        rank.evidence[level.word] += 1
        self.deliver(levels.event(rank.number, level, "it is hot", unusable))

    def request(
        self,
        event: from_operator.HoldRequested
        | from_operator.ContinueRequested
        | from_operator.NodeSubHealthy,
    ) -> None:
        if self.asleep is not None:
            self.asleep.append(
                lambda m=self.manager: self.request(event) if m == self.manager else None
            )
            return
        self.laws.asked(event.request)
        self.deliver(event)

    # -- ranks and their agents

    def start(self, node: Node) -> None:
        """The launcher starts all ranks of a node."""
        for rank in node.ranks:
            fresh = Rank(rank.number, rank.node, immortal=self.likely(0.01))
            rank.__dict__.update(fresh.__dict__)
            self.laws.newest[rank.number] = 0
            self.after(self.chance.uniform(0.5, 3), self.alive(rank, lambda r=rank: self.join(r)))
        node.protected, node.generation, node.hold = False, 0, None
        self.electorate.connect(node.agent)
        self.announce(node)

    def announce(self, node: Node) -> None:
        joined = tuple(r.number for r in node.ranks if r.begun or r.incarnation)
        dead = [r for r in node.ranks if not r.alive and not r.quit]
        new = [r for r in node.ranks if r.alive and r.blank]
        event = from_agent.AgentJoined(
            node.number,
            tuple(r.number for r in node.ranks),
            (f"node-{node.number}", 7000),
            node.epoch,
            tuple(r.incarnation for r in node.ranks),
            joined,
            tuple(
                r.number
                for r in node.ranks
                if r.alive and not r.blank and r.mode in (HELD, FINISHED)
            )
            if node.protected
            else (),
            tuple(r.number for r in dead),
            tuple(r.number for r in new),
            tuple(r.number for r in new if r.mode == HELD),
            tuple(r.left for r in (*dead, *new)),
            node.generation if node.protected else 0,
            node.pause,
            node.agent,
            (f"node-{node.number}", 8000),
        )
        self.say(node, event)
        for rank in node.ranks:
            if rank.quit:
                self.say(
                    node, from_agent.RankEnded(rank.number, rank.incarnation, rank.step, rank.left)
                )
        ended = [r for r in node.ranks if r.mode == ENDED]
        for rank in ended:  # what it said of them may have been lost
            self.say(node, from_agent.RankEnded(rank.number, rank.incarnation))
        if len(ended) == len(node.ranks):
            self.say(node, from_agent.AgentLeft(node.number, True))

    # -- nodes and standbys

    def standby(self, agent: str) -> None:
        """It waits, and says so again when it is asked by a new manager."""
        again = agent in self.standbys
        self.standbys.add(agent)
        if not again:
            self.electorate.connect(agent)
        self.deliver(from_agent.StandbyJoined(agent, self.settings.ranks_per_node))
        if self.likely(0.1) and not again:
            self.after(self.chance.uniform(0.0, 30.0), lambda: self.lose_standby(agent))

    def lose_standby(self, agent: str) -> None:
        if agent in self.standbys:
            self.counts["standby lost"] += 1
            self.standbys.discard(agent)
            self.deliver(e.AgentDisconnected(agent))
            self.deliver(e.StandbyLost(agent, "its connection has ended"))

    def fence(self, agent: str) -> None:
        """Its ranks end, and nothing that it says is heard."""
        self.fenced.add(agent)
        self.standbys.discard(agent)
        self.formers = {n: f for n, f in self.formers.items() if f.node["agent"] != agent}
        for node in self.nodes:
            if node.agent == agent:
                self.vanish(node)

    def vanish(self, node: Node) -> None:
        node.gone = True
        for rank in node.ranks:
            rank.record = rank.record if rank.blank or not rank.alive else self.kept(rank)
            rank.alive = False

    def kept(self, rank: Rank) -> Position:
        """What another node knows of it: the record of a step is there before the rank goes into
        the step's first collective."""
        begun = rank.stage != COMMITTED or self.chance.random() < 0.5
        last = rank.step if begun else rank.step - 1
        return Position(
            max(last, 0),
            None,
            frozenset(),
            frozenset(s for s in range(last - 2, last + 1) if s >= 0),
        )

    def lose_node(self, node: Node) -> None:
        """Its processes are gone, or nothing is heard of it for a while."""
        if node.gone or node.cut:
            return
        noticed = self.chance.choice([0.05, 1.2])
        manager, agent = self.manager, node.agent
        if self.chance.random() < 0.5:
            self.counts["node lost"] += 1
            self.vanish(node)
        else:
            self.counts["node cut"] += 1
            node.cut = True
            self.after(
                self.chance.choice([1.5, self.chance.uniform(1.0, 90.0)]),
                lambda: self.come_back(node, agent),
            )

        def lost() -> None:
            if (manager, agent) == (self.manager, node.agent):
                self.deliver(e.AgentDisconnected(agent))
                self.deliver(e.AgentLost(node.number, "its connection has ended"))

        self.after(noticed, lost)

    def come_back(self, node: Node, agent: str) -> None:
        if node.agent == agent and node.cut and not node.gone:
            self.counts["node comes back"] += 1
            node.cut, node.sent = False, self.now
            node.received = self.now
            self.wires[node.number].begin()
            self.electorate.connect(agent)
            self.announce(node)

    def take_over(self, order: to_agent.TakeOver) -> None:
        if order.former:
            node = self.nodes[order.node]
            former = Former(
                order.agent, dict(node.__dict__), [dict(r.__dict__) for r in node.ranks]
            )
            self.formers[order.node] = former
            if self.likely(0.6):
                self.after(
                    self.chance.uniform(0.0, 1.5), lambda: self.lose_former(order.node, former)
                )
        if order.agent not in self.standbys or self.likely(0.05):
            return  # it is gone, or says nothing
        manager, prepared = self.manager, self.prepared.pop(order.agent, None)
        ready = prepared is not None and (prepared.node, prepared.incarnations) == (
            order.node,
            order.incarnations,
        )
        assert ready or not order.former, "a node moves to a standby that is not ready for it"
        self.after(self.chance.uniform(0.01, 1.5), lambda: self.taken(order, manager))

    # -- nodes that move

    def prepare(self, order: to_agent.Prepare) -> None:
        if order.agent not in self.standbys or self.likely(0.05):
            return
        assert order.agent not in self.prepared
        self.prepared[order.agent], manager = order, self.manager
        why = "rank 0 left with exit code 1" if self.likely(0.2) else ""

        def done() -> None:
            if (
                self.prepared.get(order.agent) is not order
                or manager != self.manager
                or order.agent not in self.standbys
            ):
                return
            if why:
                del self.prepared[order.agent]
            self.counts["not prepared" if why else "prepared"] += 1
            told = (
                from_agent.PreparationFailed(order.node, order.agent, why)
                if why
                else from_agent.NodePrepared(order.node, order.agent)
            )
            self.deliver(told)

        self.after(self.chance.choice([0.1, 0.1, self.chance.uniform(0.1, 5.0)]), done)

    def stand_down(self, agent: str, number: int) -> None:
        """The standby waits again; whoever has had the node has it again."""
        self.prepared.pop(agent, None)
        former = self.formers.get(number)
        if former is not None and former.assignee == agent:
            node = self.nodes[number]
            there = node.agent == agent and not node.gone and not node.cut
            self.put_back(number)
            if there:
                self.after(0.01, lambda: self.standby(agent) if agent not in self.fenced else None)
            self.counts["put back"] += 1

    def put_back(self, number: int) -> None:
        former, node = self.formers.pop(number), self.nodes[number]
        node.__dict__.update(
            {**former.node, "sent": self.now, "received": self.now, "joined": self.manager}
        )
        self.wires[number].begin()
        for rank, before in zip(node.ranks, former.ranks, strict=True):
            rank.__dict__.update(before)
            self.laws.newest[rank.number] = rank.incarnation
        if former.lost:
            self.vanish(node)

    def lose_former(self, number: int, former: Former) -> None:
        if self.formers.get(number) is former and not self.over:
            self.counts["former lost"] += 1
            former.lost = True
            self.deliver(e.FormerLost(number, former.node["agent"], "its connection has ended"))

    def taken(self, order: to_agent.TakeOver, manager: int) -> None:
        former = self.formers.get(order.node)
        moves = former is not None and former.assignee == order.agent
        if (
            order.agent not in self.standbys
            or manager != self.manager
            or (order.former and not moves)
        ):
            return
        self.standbys.discard(order.agent)
        old = self.nodes[order.node]
        if order.former:
            for rank in old.ranks:
                at = rank.position()
                rank.record = (
                    Position(at.step, None, at.final, at.provisional) if rank.alive else None
                )
        fresh = Node(
            old.number,
            old.ranks,
            order.epoch,
            order.generation,
            True,
            order.pause,
            agent=order.agent,
            joined=self.manager,
        )
        left = tuple(r.record if order.records[1] else None for r in old.ranks)
        self.wires[old.number].begin()
        old.__dict__.update({**fresh.__dict__, "sent": self.now, "received": self.now})
        for rank, incarnation in zip(old.ranks, order.incarnations, strict=True):
            kept = rank.record
            rank.__dict__.update(
                Rank(rank.number, rank.node, incarnation - 1, begun=True, alive=False).__dict__
            )
            rank.record = rank.left = kept if order.records[1] else None
            self.replace(rank, incarnation)
        self.say(
            old,
            from_agent.NodeTaken(
                old.number,
                old.agent,
                (f"node-{old.number}", 7001),
                (f"node-{old.number}", 8001),
                left,
            ),
        )

    def alive(self, rank: Rank, action: Callable[[], None]) -> Callable[[], None]:
        """`action`, unless the process is another one by then."""
        node, incarnation, epoch = (
            self.nodes[rank.node],
            rank.incarnation,
            self.nodes[rank.node].epoch,
        )

        def act() -> None:
            if (
                rank.alive
                and rank.incarnation == incarnation
                and node.epoch == epoch
                and not self.over
            ):
                action()

        return act

    def join(self, rank: Rank) -> None:
        if self.likely(0.01):
            self.die(rank, "died while forming")
            return
        rank.begun = True
        self.say(self.nodes[rank.node], from_rank.RankJoined(rank.number, rank.incarnation))

    def die(self, rank: Rank, cause: str) -> None:
        if not rank.alive or rank.mode == ENDED:
            return
        node = self.nodes[rank.node]
        if not rank.blank:
            at = rank.position() if node.protected else None
            rank.left = (
                Position(at.step, None, at.final, at.provisional, at.stripes) if at else None
            )
        rank.alive, rank.died = False, self.now
        self.counts["deaths"] += 1
        told = None if rank.blank and self.chance.random() < 0.5 else rank.left
        self.say(node, from_agent.RankDied(rank.number, rank.incarnation, cause, told))
        for other in self.ranks:
            if other.alive and other.mode == TRAINING and self.chance.random() < 0.3:
                self.after(
                    self.chance.choice([0.0, 0.001, 5.0]),
                    self.alive(other, lambda o=other: self.lose_collective(o)),
                )

    def quit(self, rank: Rank) -> None:
        """The script ends by itself, in the middle of its loop."""
        node = self.nodes[rank.node]
        if not rank.alive or rank.blank or rank.mode != TRAINING or not node.protected:
            return
        at = rank.position()
        rank.left = Position(at.step, None, at.final, at.provisional, at.stripes)
        rank.alive, rank.quit = False, True
        self.say(node, from_agent.RankEnded(rank.number, rank.incarnation, rank.step, rank.left))
        for other in self.ranks:
            if other.alive and other.mode == TRAINING and self.chance.random() < 0.3:
                self.after(
                    self.chance.choice([0.0, 0.001, 5.0]),
                    self.alive(other, lambda o=other: self.lose_collective(o)),
                )

    def lose_collective(self, rank: Rank) -> None:
        if rank.mode == TRAINING and rank.stage != COMMITTED and rank.slow <= self.now:
            rank.mode = HELD
            rank.evidence["lost a collective"] += 1
            self.say(
                self.nodes[rank.node],
                from_rank.CollectiveFailed(
                    rank.number, rank.incarnation, rank.step, "Connection closed by peer"
                ),
            )

    # -- training

    def begin(self, rank: Rank) -> None:
        """The top of the loop: its end, a hold, or the next step."""
        node = self.nodes[rank.node]
        if rank.step >= self.total:
            # the end of the pass is recorded like the start of a step
            rank.mode, rank.stage = FINISHED, COMPUTING
            self.say(node, from_rank.RankFinished(rank.number, rank.incarnation, rank.step))
        elif node.hold is not None and rank.step >= node.hold:
            rank.mode, rank.recorded = STANDING, rank.step
            self.say(node, from_rank.RankHeld(rank.number, rank.incarnation, rank.step))
        else:
            self.laws.begins(rank)
            rank.mode, rank.stage, rank.entered, rank.since = TRAINING, COMPUTING, False, self.now
            self.misfortune.in_user_code(rank)
            self.move(rank)
            self.next(rank, self.chance.uniform(0.01, 0.2))

    def next(self, rank: Rank, delay: float) -> None:
        """The rank trains on after `delay`, unless that is decided anew before."""
        rank.turn = turn = rank.turn + 1
        self.after(delay, self.alive(rank, lambda: self.train(rank) if rank.turn == turn else None))

    def move(self, rank: Rank) -> None:
        """The rank makes progress, and is complained of when it makes none for too long after
        that."""
        rank.beat = beat = self.now
        self.after(
            LIMIT if rank.steps else FIRST, self.alive(rank, lambda: self.complain(rank, beat))
        )

    def complain(self, rank: Rank, beat: float, times: int = 1) -> None:
        if rank.beat != beat or times > 25:  # whatever it is, it is found out by then
            return
        if self.nodes[rank.node].protected and rank.overdue(self.now):
            self.say(
                self.nodes[rank.node],
                from_agent.RankStalled(
                    rank.number, rank.incarnation, rank.step, self.now - rank.beat
                ),
            )
        self.after(LIMIT, self.alive(rank, lambda: self.complain(rank, beat, times + 1)))

    def arrived(self, rank: Rank) -> bool:
        """Whether all have come into the collective."""
        return not (self.jam and rank.step >= self.jam_from) and all(
            o.alive
            and not o.blank
            and (o.step > rank.step or (o.step == rank.step and o.stage != COMMITTED and o.entered))
            for o in self.ranks
        )

    def train(self, rank: Rank) -> None:
        """From stage to stage, the update of a step when all have begun it."""
        if rank.mode != TRAINING:
            return
        node, waits = self.nodes[rank.node], False
        if rank.slow > self.now:
            self.next(rank, rank.slow - self.now)
            return
        if rank.stage == COMPUTING and not rank.entered:
            if rank.bad:
                self.misfortune.lose_page(rank, rank.bad)
                return
            rank.entered = True
            self.move(rank)
            if self.arrived(rank):  # those that wait notice at once
                for other in self.ranks:
                    if (
                        other.mode == TRAINING
                        and other.entered
                        and other.stage == COMPUTING
                        and other.step == rank.step
                    ):
                        self.next(other, self.chance.choice([0.0001, 0.005]))
                return
        elif rank.stage == COMPUTING:
            if self.misfortune.link_is_broken(rank):
                self.lose_collective(rank)
                return
            if self.arrived(rank):
                rank.stage, rank.clean = UPDATED, False
            elif self.now - rank.since > (3 * PATIENCE if self.jam else PATIENCE) and all(
                o.slow <= self.now for o in self.ranks
            ):
                self.lose_collective(rank)
                return
            else:
                waits = True
        elif rank.stage == UPDATED:
            rank.step, rank.stage, rank.clean, rank.steps = (
                rank.step + 1,
                COMMITTED,
                True,
                rank.steps + 1,
            )
            rank.beat = self.now
            if not rank.told:
                rank.told = True
                self.say(
                    node,
                    from_rank.StepCommitted(
                        rank.number, rank.incarnation, node.generation, rank.step - 1
                    ),
                )
        else:
            self.begin(rank)
            return
        if not waits:
            rank.cpu += 1.0
        self.misfortune.strike(rank)
        long = waits and self.now - rank.since > 1.0
        self.next(rank, self.chance.uniform(0.2, 1.0) if long else self.chance.uniform(0.01, 0.2))

    # -- what is ordered

    def obey(self, node: Node, command: c.Command) -> None:
        if node.gone:
            return
        if isinstance(command, to_rank.Pause):
            node.pause = max(node.pause, command.pause)
            for rank in node.ranks:
                if rank.alive and rank.mode not in (ENDED,):
                    self.leave(rank, command.pause)
        elif isinstance(command, to_agent.Replace) and self.ranks[command.rank] in node.ranks:
            self.replace(self.ranks[command.rank], command.incarnation)
        elif isinstance(command, to_agent.Kill) and self.ranks[command.rank] in node.ranks:
            rank = self.ranks[command.rank]
            if rank.incarnation == command.incarnation and not rank.immortal:
                takes = self.chance.choice(
                    [0.001, self.chance.uniform(0.0, 3.0), self.chance.uniform(3.0, 9.5)]
                )
                self.after(takes, self.alive(rank, lambda: self.die(rank, "was killed by SIGKILL")))
        elif isinstance(command, to_rank.Rebuild):
            node.generation, node.pause = command.generation, max(node.pause, command.pause)
            for rank in node.ranks:
                self.rebuild(rank, command)
        elif isinstance(command, to_rank.Restore):
            for rank in node.ranks:
                if rank.alive and rank.mode == HELD and rank.paused <= command.pause:
                    self.after(
                        self.chance.uniform(0.01, 2.0),
                        self.alive(rank, lambda r=rank: self.restore(r, command)),
                    )
        elif isinstance(command, to_rank.Resume):
            self.resume(node, command)
        elif isinstance(command, to_rank.SaveState) and self.ranks[command.rank] in node.ranks:
            rank = self.ranks[command.rank]
            self.after(
                self.chance.choice([0.1, 20.0]), self.alive(rank, lambda: self.save(rank, command))
            )
        elif isinstance(command, to_agent.SaveRecords):
            why = "[Errno 28] No space left on device" if self.likely(0.02) else ""
            saved = from_agent.RecordsSaved(node.number, command.pause, (), why)
            self.after(self.chance.choice([0.01, 1.0]), lambda: self.say(node, saved))
        elif isinstance(command, to_agent.Seal) and node.number == command.node:
            why = "[Errno 28] No space left on device" if self.likely(0.02) else ""
            self.after(
                0.01,
                lambda: self.say(
                    node,
                    from_agent.Sealed(
                        node.number, command.pause, "" if why else "/dumps/step", why
                    ),
                ),
            )
        elif isinstance(command, to_rank.Release):
            for rank in node.ranks:
                if rank.alive and rank.mode == FINISHED and rank.step <= command.step:
                    self.after(
                        self.chance.uniform(0.0, 1.0), self.alive(rank, lambda r=rank: self.end(r))
                    )
            self.leave_well(node)
        elif isinstance(command, to_rank.RollCall):
            self.answer(node, command.call)
        elif isinstance(command, to_agent.AskSteps):
            begun = [
                r.step + (r.mode in (TRAINING, HUNG, LOOPING) and r.stage != COMMITTED)
                for r in node.ranks
            ]
            self.say(node, from_agent.StepsBegun(node.number, max(begun)))
        elif isinstance(command, to_rank.Hold | to_rank.Continue):
            node.passing = isinstance(command, to_rank.Hold) and command.passing
            self.stand(node, command.step if isinstance(command, to_rank.Hold) else None)
        elif (
            isinstance(command, to_agent.RestartAll)
            and dict(command.epochs)[node.number] == node.epoch
        ):
            if node.epoch == 3:  # --max_restarts
                self.say(node, from_agent.AgentLeft(node.number, False, "no restarts are left"))
                return
            node.epoch += 1
            for rank in node.ranks:
                rank.alive = False
            self.after(self.chance.uniform(0.1, 2.0), lambda: self.start(node))

    def stand(self, node: Node, hold: int | None) -> None:
        """Ranks look at the boundary when they begin a step; here is told who had begun it
        before."""
        node.hold = hold
        for rank in node.ranks:
            if not rank.alive:
                continue
            if rank.mode == STANDING:
                self.begin(rank)
            elif (
                hold is not None
                and rank.mode in (TRAINING, HUNG, LOOPING)
                and rank.stage != COMMITTED
                and rank.step >= hold
            ):
                self.say(node, from_rank.RankPassed(rank.number, rank.incarnation, rank.step))

    def answer(self, node: Node, call: int) -> None:
        """A roll call. The agent answers for those who do not; it may be gone itself."""
        if self.likely(0.03):
            self.counts["roll call unanswered"] += 1
            return
        for rank in node.ranks:
            if rank.mode != ENDED:
                answers = (
                    rank.alive
                    and rank.mode != HUNG
                    and (rank.slow <= self.now or self.chance.random() < 0.5)
                )
                process = (rank.incarnation, node.epoch)
                self.after(
                    0.001 if answers else 0.25,
                    lambda r=rank, p=process, a=answers: self.present(r, p, call, a),
                )

    def present(self, rank: Rank, process: tuple[int, int], call: int, answers: bool) -> None:
        if process != (rank.incarnation, self.nodes[rank.node].epoch):
            return
        inside = rank.stage != COMMITTED and rank.mode in (TRAINING, HUNG, LOOPING)
        self.say(
            self.nodes[rank.node],
            from_agent.RankPresent(
                rank=rank.number,
                incarnation=rank.incarnation,
                call=call,
                answered=answers,
                step=rank.step,
                collectives=int(inside and (rank.entered or rank.stage == UPDATED))
                if answers
                else 0,
                waiting=rank.mode in (HELD, STANDING, FINISHED),
                overdue=rank.overdue(self.now),
                seconds=self.now - rank.beat,
                cpu=rank.cpu
                + (
                    self.now
                    if rank.mode == LOOPING or (rank.slow > self.now and rank.steps == 0)
                    else 0.0
                ),
                where=rank.mode,
                patient=rank.slow > self.now and rank.steps > 0,
            ),
        )

    def resume(self, node: Node, command: to_rank.Resume) -> None:
        node.protected = True
        if self.jam and command.generation > self.jammed:
            self.jam, self.jammed, self.jam_from = self.jam - 1, command.generation, 0
        for rank in node.ranks:
            if (
                rank.alive
                and rank.mode in (HELD, SETUP)
                and rank.paused <= command.pause
                and not rank.spoiled
            ):
                rank.mode, rank.told, rank.blank, rank.paused, rank.deaf = (
                    TRAINING,
                    False,
                    False,
                    command.pause,
                    False,
                )
                self.begin(rank)

    def leave(self, rank: Rank, pause: int) -> None:
        """A rank is asked to pause; a hung one does not hear it."""
        node = self.nodes[rank.node]

        def out() -> None:
            if rank.mode in (HUNG, LOOPING) or rank.paused > pause or pause <= rank.era:
                return
            if rank.blank:  # it has nothing to report, but leaves what it is in
                rank.paused, rank.rebuilding = pause, 0
                return
            held = node.hold is not None and rank.step >= node.hold
            if (
                rank.stage == COMMITTED
                and rank.mode == TRAINING
                and rank.step < self.total
                and not held
                and self.chance.random() < 0.5
            ):
                rank.stage = COMPUTING  # the next step is begun before the pause is seen
            first = rank.paused < pause
            rank.paused, rank.rebuilding, rank.mode, rank.entered = pause, 0, HELD, False
            if first and self.likely(0.03):
                self.counts["answers lost"] += 1
                rank.paused, rank.deaf = pause - 1, True
                return
            if not rank.unfit and self.likely(0.003):
                rank.unfit = "the device's context is gone"
            self.say(
                node,
                from_rank.RankPaused(
                    rank.number, rank.incarnation, pause, rank.position(), rank.unfit
                ),
            )

        if rank.mode == TRAINING and self.likely(0.01):
            rank.mode = HUNG
        if rank.slow > self.now:
            self.counts["paused in user code"] += 1
            self.say(
                node,
                from_agent.RankBusy(
                    rank.number, rank.incarnation, pause, rank.slow - self.now + 0.5
                ),
            )
            self.after(rank.slow - self.now, self.alive(rank, out))
        elif self.likely(0.05):
            rank.deaf = True
            self.say(node, from_agent.RankBusy(rank.number, rank.incarnation, pause, 30.0))
            self.after(self.chance.uniform(1.0, 40.0), self.alive(rank, out))
        else:
            self.after(self.chance.choice([0.001, 0.005, 0.7]), self.alive(rank, out))

    def replace(self, rank: Rank, incarnation: int) -> None:
        if incarnation <= rank.incarnation:
            return
        node = self.nodes[rank.node]
        fresh = Rank(
            rank.number,
            rank.node,
            incarnation,
            blank=True,
            begun=True,
            left=rank.left,
            paused=node.pause,
            record=rank.record,
        )
        rank.__dict__.update(fresh.__dict__)
        if self.likely(0.01):
            rank.mode = HUNG
        elif self.likely(0.1):
            self.after(
                self.chance.uniform(0.1, 2.0),
                self.alive(rank, lambda: self.die(rank, "left with exit code 3")),
            )
        else:
            self.after(self.chance.uniform(0.1, 3.0), self.alive(rank, lambda: self.ready(rank)))

    def ready(self, rank: Rank) -> None:
        rank.mode = HELD
        self.say(self.nodes[rank.node], from_rank.RankReady(rank.number, rank.incarnation))

    def rebuild(self, rank: Rank, command: to_rank.Rebuild) -> None:
        if not rank.alive or rank.mode not in (SETUP, HELD) or rank.paused > command.pause:
            return
        if self.likely(0.01):
            rank.mode = HUNG
            return
        if self.likely(0.02):
            self.after(0.05, self.alive(rank, lambda: self.die(rank, "was killed by SIGKILL")))
        rank.rebuilding, rank.era = command.generation, command.pause
        if all(r.alive and r.rebuilding == command.generation for r in self.ranks):
            for r in self.ranks:
                self.after(
                    self.chance.uniform(0.01, 0.2),
                    self.alive(r, lambda r=r: self.rebuilt(r, command.generation)),
                )
        self.after(
            15.0, self.alive(rank, lambda: self.fail(rank, command.generation, command.generation))
        )

    def rebuilt(self, rank: Rank, generation: int) -> None:
        if rank.rebuilding == generation:
            rank.rebuilding = 0
            self.say(
                self.nodes[rank.node],
                from_rank.RankRebuilt(rank.number, rank.incarnation, generation),
            )

    def fail(self, rank: Rank, generation: int, still: int) -> None:
        if rank.rebuilding == still:
            rank.rebuilding = 0
            rank.evidence["failed"] += 1
            self.say(
                self.nodes[rank.node],
                from_rank.RankFailed(
                    rank.number, rank.incarnation, generation, "RuntimeError: it did not work"
                ),
            )

    def restore(self, rank: Rank, command: to_rank.Restore) -> None:
        if rank.mode != HELD or rank.paused > command.pause:
            return
        if self.likely(0.02):
            self.die(rank, "was killed by SIGKILL")
        # a page of a replacement that has told nobody
        elif self.likely(0.03) or (rank.blank and rank.spoiled):
            rank.clean = rank.spoiled = False
            self.fail(rank, command.generation, rank.rebuilding)
        elif self.likely(0.005):
            rank.mode = HUNG
        else:
            rank.step, rank.stage, rank.clean, rank.blank, rank.spoiled = (
                command.plan.step,
                COMPUTING,
                True,
                False,
                False,
            )
            digest = "ffff" if self.likely(0.002) else str(command.plan.step)
            rank.evidence[f"digest {digest}"] += 1
            self.say(
                self.nodes[rank.node],
                from_rank.RankRestored(rank.number, rank.incarnation, command.generation, digest),
            )

    def save(self, rank: Rank, command: to_rank.SaveState) -> None:
        if rank.mode != HELD or rank.paused > command.pause:
            return
        if self.likely(0.1):
            self.die(rank, "was killed by SIGKILL")
        elif self.likely(0.05):
            self.say(
                self.nodes[rank.node],
                from_rank.RankFailed(
                    rank.number, rank.incarnation, command.generation, "OSError: disk full"
                ),
            )
        else:
            self.counts["state saved"] += 1
            self.say(
                self.nodes[rank.node],
                from_rank.StateSaved(
                    rank.number, rank.incarnation, command.pause, (("state/x", 1, "ab"),)
                ),
            )

    def end(self, rank: Rank) -> None:
        if rank.mode != FINISHED:
            return
        if self.likely(0.01):
            self.die(rank, "left with exit code 1")
            return
        rank.mode = ENDED
        node = self.nodes[rank.node]
        self.say(node, from_agent.RankEnded(rank.number, rank.incarnation))
        self.leave_well(node)

    def leave_well(self, node: Node) -> None:
        if all(r.mode == ENDED or r.quit for r in node.ranks):
            self.say(node, from_agent.AgentLeft(node.number, True))

    def new_manager(self) -> None:
        self.manager += 1
        self.prepared.clear()
        for number, former in list(self.formers.items()):
            if self.nodes[number].agent == former.assignee and not self.nodes[number].gone:
                self.standbys.add(former.assignee)  # it stands down
            self.put_back(number)
        for node in self.nodes:
            if node.passing and not node.gone:
                node.passing = False
                self.stand(node, None)
        self.coordinator = Coordinator(self.settings, self.electorate.election())
        self.laws.new_manager()
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
        self.after(5.0, self.go_on)

    def no_majority(self) -> None:
        """Agents do not wait for a manager forever."""
        if not self.over and not self.coordinator.election.in_charge:
            self.over, self.outcome = True, "no majority"

"""A job as the coordinator sees it: nodes with ranks that answer to commands, late, twice or not at all, and die at any moment.

Discrete events on a clock of its own; everything is drawn from one seed. Messages of a node arrive in order, as in the real
one. `World.run` plays a job to its end and checks at every command what must always hold.
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

SETUP, TRAINING, HELD, FINISHED, ENDED, HUNG = "setup", "training", "held", "finished", "ended", "hung"
COMPUTING, UPDATED, COMMITTED = 0, 1, 2
PATIENCE = 15.0  # seconds after which the collective library gives up


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
    clean: bool = True  # what is in memory is the state at the start of `step`
    told: bool = False  # the first commit after a resume
    paused: int = 0
    era: int = 0  # number of the pause that the present communicators were built in
    rebuilding: int = 0
    left: e.Position | None = None
    immortal: bool = False
    begun: bool = False  # its loop
    since: float = 0.0  # when the collective was entered

    def position(self) -> e.Position:
        begun = frozenset(s for s in (self.step - 1, self.step) if s >= 0)
        if self.stage == COMMITTED:  # between two steps: `step` is the next one
            before = frozenset(s for s in (self.step - 2, self.step - 1) if s >= 0)
            return e.Position(self.step, self.step if self.clean else None, before, frozenset({self.step}), before)
        clean = self.step if self.stage == COMPUTING and self.clean else None
        return e.Position(self.step, clean, begun, frozenset(), begun)


@dataclass
class Node:
    number: int
    ranks: list[Rank]
    epoch: int = 0
    generation: int = 0
    protected: bool = False
    pause: int = 0
    gone: bool = False
    sent: float = 0.0  # arrival of the last message, either way
    received: float = 0.0


@dataclass
class World:
    seed: int
    trouble: float = 1.0  # scales every probability of something going wrong
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.chance = chance = random.Random(self.seed)
        nodes = chance.choice([1, 1, 2])
        per_node = chance.randint(2 if nodes == 1 else 1, 8 // nodes)
        ladder = chance.choice([("retry", "recover-in-place", "exit")] * 3 + [("recover-in-place", "exit"), ("retry", "exit")])
        self.settings = e.Settings(nodes, per_node, ladder)
        self.coordinator = Coordinator(self.settings)
        self.total = chance.randint(3, 12)
        self.ranks = [Rank(n, n // per_node) for n in range(nodes * per_node)]
        self.nodes = [Node(n, self.ranks[n * per_node : (n + 1) * per_node]) for n in range(nodes)]
        self.now = 0.0
        self.queue: list[tuple[float, int, Callable[[], None]]] = []
        self.order = 0
        self.manager = 0  # how many there have been
        self.faults = chance.randint(0, 4)
        self.generation = self.pause = 0
        self.newest = {r.number: 0 for r in self.ranks}  # incarnation last ordered or announced
        self.restored: dict[int, dict[int, str]] = {}  # generation -> what the coordinator has been told
        self.floor = 0  # no incident resumes before this step
        self.tellings: list[str] = []  # faults told since the last incident was closed
        self.trace: list[str] = []
        self.over = False

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
        for _ in range(20_000):
            if self.over and not self.queue:
                return self.outcome
            due = self.coordinator.deadline()
            if due is not None and (not self.queue or due <= self.queue[0][0]):
                self.now = max(self.now, due)
                self.deliver(e.Tick())
                later = self.coordinator.deadline()
                assert later is None or later > self.now, f"a tick at {self.now} leaves the deadline at {later}"
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
        if node.gone:
            return
        arrival = max(node.sent, self.now + self.chance.choice([0.0001, 0.001, 0.001, 0.02])) + 1e-6
        node.sent, manager = arrival, self.manager
        self.after(arrival - self.now, lambda: self.deliver(event) if manager == self.manager else None)
        guarded = isinstance(
            event, e.RankDied | e.RankPaused | e.RankBusy | e.RankReady | e.RankRebuilt | e.RankRestored | e.StepCommitted
        )
        if guarded and self.likely(0.1):  # once more, and late
            self.counts["repeated"] += 1
            again = self.chance.choice([0.0, 0.5, 3.0])
            epoch = node.epoch  # a repeated message of processes that are gone is known by its number, before it comes here
            self.after(
                arrival - self.now + again,
                lambda: self.deliver(event) if (manager, epoch) == (self.manager, node.epoch) else None,
            )

    def deliver(self, event: e.Event) -> None:
        k = self.coordinator
        rank = getattr(event, "rank", None)
        current = rank is not None and getattr(event, "incarnation", 0) == k.ranks[rank].incarnation
        if isinstance(event, e.RankRestored) and current:
            self.restored.setdefault(event.generation, {})[event.rank] = event.digest
        if isinstance(event, e.RankDied) and current and k.protected and k.ranks[event.rank].alive:
            self.tellings.append(event.cause)
        if not isinstance(event, e.Tick):
            self.trace.append(f"{self.now:9.3f} {event}")
        was_over, incident = k.over, k.incident
        commands = k.step(event, self.now)
        assert not (was_over and commands), "a command after the end"
        if incident is not None and k.incident is not None:
            assert len(k.incident.timeline.entered) < 2000
        for command in commands:
            self.trace.append(f"{self.now:9.3f}     {command}")
            self.check(command)
            self.carry_out(command)

    def carry_out(self, command: c.Command) -> None:
        self.counts[type(command).__name__] += 1
        if isinstance(command, c.End | c.GiveUp):
            self.over = True
            self.outcome = (
                "gave up" if isinstance(command, c.GiveUp) or self.counts["GiveUp"] else "well" if command.ok else "failed"
            )
        elif isinstance(command, c.Closed):
            self.counts[f"closed by {command.strategy}"] += 1
        elif not isinstance(command, c.Note):
            for node in self.nodes:
                if node.gone or (isinstance(command, c.Pause) and self.likely(0.02)):
                    continue
                arrival = max(node.received, self.now + self.chance.choice([0.0001, 0.001, 0.02])) + 1e-6
                node.received = arrival
                manager = self.manager
                self.after(arrival - self.now, lambda n=node, m=manager: self.obey(n, command) if m == self.manager else None)

    # -- what must always hold

    def check(self, command: c.Command) -> None:
        k = self.coordinator
        assert k.generation >= self.generation and k.pause >= self.pause, "a number went back"
        self.generation, self.pause = k.generation, k.pause
        if isinstance(command, c.Pause | c.Rebuild | c.Restore | c.Resume):
            assert command.pause == k.pause
        if isinstance(command, c.Rebuild | c.Restore | c.Resume):
            assert command.generation == k.generation
        if isinstance(command, c.Replace):
            assert command.incarnation == self.newest[command.rank] + 1, "an incarnation twice, or one left out"
            self.newest[command.rank] = command.incarnation
        elif isinstance(command, c.Kill):
            assert command.incarnation == self.newest[command.rank], "a command to an old incarnation"
        elif isinstance(command, c.Restore):
            self.check_plan(command)
        elif isinstance(command, c.Resume) and k.incident is not None:
            told = self.restored.get(command.generation, {})
            assert set(told) == set(k.ranks), "resumed before all had restored"
            assert len(set(told.values())) == 1, f"resumed on different states {told}"
            assert set(told.values()) == {str(command.step)}
            assert all(r.alive for r in k.ranks.values())
        elif isinstance(command, c.Closed):
            self.floor, self.tellings = max(self.floor, command.step), []
            assert command.seconds >= 0 and abs(sum(command.phases.values()) - command.seconds) < 1e-6
            assert command.tried[-1] == f"{command.strategy}: done"
            assert command.faults
        elif isinstance(command, c.Release):
            self.floor = max(self.floor, command.step)
            assert command.step == self.total
        elif isinstance(command, c.GiveUp):
            for part in ("could not be repaired", "What failed: ", "When: ", "s ago", "What was tried: "):
                assert part in command.reason, f"no {part!r} in {command.reason!r}"
            failed = command.reason.split("What failed: ")[1].split(". When: ")[0]
            tried = command.reason.split("What was tried: ")[1]
            assert failed and tried
            assert "and more" in failed or all(cause in failed for cause in self.tellings), (failed, self.tellings)
            if k.incident is not None and k.incident.rounds:
                assert not tried.startswith("nothing"), "something was tried, and the paragraph denies it"

    def check_plan(self, command: c.Restore) -> None:
        plan = command.plan
        assert sorted([*plan.keep, *plan.stripes, *(d for d, _ in plan.copies)]) == [r.number for r in self.ranks]
        assert plan.step >= self.floor, f"step {plan.step} is repeated, {self.floor} was behind everybody"
        incident = self.coordinator.incident
        assert incident is not None
        ends = [r.left if n in incident.new else incident.reports[n] for n, r in self.coordinator.ranks.items()]
        assert min(max(p.final) for p in ends if p) <= plan.step <= min(max(p.final | p.provisional) for p in ends if p)
        for number in plan.keep:
            rank = self.ranks[number]
            if rank.alive and rank.incarnation == self.newest[number]:
                assert rank.position().clean == plan.step and not rank.blank

    # -- ranks and their agents

    def start(self, node: Node) -> None:
        """The launcher starts all ranks of a node."""
        for rank in node.ranks:
            fresh = Rank(rank.number, rank.node, immortal=self.likely(0.01))
            rank.__dict__.update(fresh.__dict__)
            self.newest[rank.number] = 0
            self.after(self.chance.uniform(0.5, 3), self.alive(rank, lambda r=rank: self.join(r)))
        node.protected, node.generation = False, 0
        self.announce(node)

    def announce(self, node: Node) -> None:
        joined = tuple(r.number for r in node.ranks if r.begun or r.incarnation)
        dead = [r for r in node.ranks if not r.alive]
        event = e.AgentJoined(
            node.number,
            tuple(r.number for r in node.ranks),
            (f"node-{node.number}", 7000),
            node.epoch,
            tuple(r.incarnation for r in node.ranks),
            joined,
            tuple(r.number for r in node.ranks if r.alive and not r.blank and r.mode in (HELD, FINISHED))
            if node.protected
            else (),
            tuple(r.number for r in dead),
            tuple(r.left for r in dead),
            node.generation if node.protected else 0,
            node.pause,
        )
        self.say(node, event)

    def alive(self, rank: Rank, action: Callable[[], None]) -> Callable[[], None]:
        """`action`, unless the process is another one by then."""
        node, incarnation, epoch = self.nodes[rank.node], rank.incarnation, self.nodes[rank.node].epoch

        def act() -> None:
            if rank.alive and rank.incarnation == incarnation and node.epoch == epoch and not self.over:
                action()

        return act

    def join(self, rank: Rank) -> None:
        if self.likely(0.01):
            self.die(rank, "died while forming")
            return
        rank.begun = True
        self.say(self.nodes[rank.node], e.RankJoined(rank.number, rank.incarnation))

    def die(self, rank: Rank, cause: str) -> None:
        if not rank.alive or rank.mode == ENDED:
            return
        node = self.nodes[rank.node]
        if not rank.blank:
            at = rank.position() if node.protected else None
            rank.left = e.Position(at.step, None, at.final, at.provisional, at.stripes) if at else None
        rank.alive = False
        self.counts["deaths"] += 1
        told = None if rank.blank and self.chance.random() < 0.5 else rank.left
        self.say(node, e.RankDied(rank.number, rank.incarnation, cause, told))
        for other in self.ranks:
            if other.alive and other.mode == TRAINING and self.chance.random() < 0.3:
                self.after(self.chance.choice([0.0, 0.001, 5.0]), self.alive(other, lambda o=other: self.lose_collective(o)))

    def lose_collective(self, rank: Rank) -> None:
        if rank.mode == TRAINING and rank.stage != COMMITTED:
            rank.mode = HELD
            self.say(
                self.nodes[rank.node], e.CollectiveFailed(rank.number, rank.incarnation, rank.step, "Connection closed by peer")
            )

    def advance(self, rank: Rank) -> None:
        """Train: from stage to stage, the update of a step when all have begun it."""
        if rank.mode != TRAINING:
            return
        node = self.nodes[rank.node]
        if rank.stage == COMPUTING:
            if all(o.alive and not o.blank and (o.step, o.mode) >= (rank.step, "") for o in self.ranks):
                rank.stage, rank.clean = UPDATED, False
            elif self.now - rank.since > PATIENCE:
                self.lose_collective(rank)
                return
        elif rank.stage == UPDATED:
            rank.step, rank.stage, rank.clean = rank.step + 1, COMMITTED, True
            if not rank.told:
                rank.told = True
                self.say(node, e.StepCommitted(rank.number, rank.incarnation, node.generation, rank.step - 1))
        else:
            rank.stage, rank.since = COMPUTING, self.now
            if self.finish(rank):
                return
        self.misfortune(rank)
        self.after(self.chance.uniform(0.01, 0.2), self.alive(rank, lambda: self.advance(rank)))

    def finish(self, rank: Rank) -> bool:
        """Whether the rank's loop is over."""
        if rank.step < self.total:
            return False
        rank.mode = FINISHED
        self.say(self.nodes[rank.node], e.RankFinished(rank.number, rank.incarnation, rank.step))
        return True

    def misfortune(self, rank: Rank) -> None:
        if self.faults <= 0 or not self.likely(0.06):
            return
        self.faults -= 1
        kind = self.chance.choice(["kill", "kill", "kill", "more", "all", "link", "hang", "manager", "node", "raise"])
        self.counts[kind] += 1
        others = self.chance.sample(self.ranks, len(self.ranks))
        if kind in ("kill", "more", "all"):
            many = {"kill": 1, "more": self.chance.randint(1, len(others)), "all": len(others)}[kind]
            for victim in others[:many]:
                delay = self.chance.choice([0.0, 0.001, 0.3, 2.0])
                self.after(delay, lambda v=victim: self.die(v, "was killed by SIGKILL"))
        elif kind == "raise":
            self.say(
                self.nodes[rank.node],
                e.RankRaised(rank.number, rank.incarnation, rank.step, self.chance.choice(["ValueError: a", "OSError: b"])),
            )
            self.die(rank, "left with exit code 1")
        elif kind == "link":
            for o in self.ranks:
                if o.alive:
                    self.after(self.chance.choice([0.0, 0.01]), self.alive(o, lambda o=o: self.lose_collective(o)))
        elif kind == "hang":
            rank.mode = HUNG
            for o in others[:1]:
                self.after(5.0, self.alive(o, lambda o=o: self.lose_collective(o)))
            self.after(30.0, lambda: self.die(rank, "was killed by its watchdog"))
        elif (
            kind == "manager"
            and all(n.protected and not n.gone for n in self.nodes)
            and not any(r.mode == ENDED for r in self.ranks)
        ):
            self.counts["new manager"] += 1
            self.manager += 1
            self.coordinator = Coordinator(self.settings)
            self.generation, self.pause = 0, 0
            self.tellings = []
            self.newest = {
                r.number: r.incarnation for r in self.ranks
            }  # whoever has been ordered meanwhile is not coming any more
            for node in self.nodes:
                node.received = self.now  # what was under way to the agents is lost too
                self.after(self.chance.uniform(0.05, 1.0), lambda n=node: self.announce(n))
        elif kind == "node" and self.chance.random() < 0.2:
            node = self.nodes[rank.node]
            self.say(node, e.AgentLost(node.number, "nothing heard for 10 s"))
            node.gone = True
            for o in node.ranks:
                o.alive = False

    # -- what is ordered

    def obey(self, node: Node, command: c.Command) -> None:
        if node.gone:
            return
        if isinstance(command, c.Pause):
            node.pause = max(node.pause, command.pause)
            for rank in node.ranks:
                if rank.alive and rank.mode not in (ENDED,):
                    self.leave(rank, command.pause)
        elif isinstance(command, c.Replace) and self.ranks[command.rank] in node.ranks:
            self.replace(self.ranks[command.rank], command.incarnation)
        elif isinstance(command, c.Kill) and self.ranks[command.rank] in node.ranks:
            rank = self.ranks[command.rank]
            if rank.incarnation == command.incarnation and not rank.immortal:
                self.after(self.chance.uniform(0.0, 3.0), self.alive(rank, lambda: self.die(rank, "was killed by SIGKILL")))
        elif isinstance(command, c.Rebuild):
            node.generation = command.generation
            for rank in node.ranks:
                self.rebuild(rank, command)
        elif isinstance(command, c.Restore):
            for rank in node.ranks:
                if rank.alive and rank.mode == HELD and rank.paused <= command.pause:
                    self.after(self.chance.uniform(0.01, 2.0), self.alive(rank, lambda r=rank: self.restore(r, command)))
        elif isinstance(command, c.Resume):
            node.protected = True
            for rank in node.ranks:
                if rank.alive and rank.mode in (HELD, SETUP) and rank.paused <= command.pause:
                    rank.mode, rank.told, rank.blank, rank.paused = TRAINING, False, False, command.pause
                    rank.since = self.now
                    if not self.finish(rank):
                        self.after(self.chance.uniform(0.01, 0.2), self.alive(rank, lambda r=rank: self.advance(r)))
        elif isinstance(command, c.Release):
            for rank in node.ranks:
                if rank.alive and rank.mode == FINISHED and rank.step <= command.step:
                    self.after(self.chance.uniform(0.0, 1.0), self.alive(rank, lambda r=rank: self.end(r)))
        elif isinstance(command, c.RestartAll) and dict(command.epochs)[node.number] == node.epoch:
            if node.epoch == 3:  # --max_restarts
                self.say(node, e.AgentLeft(node.number, False, "no restarts are left"))
                return
            node.epoch += 1
            for rank in node.ranks:
                rank.alive = False
            self.after(self.chance.uniform(0.1, 2.0), lambda: self.start(node))

    def leave(self, rank: Rank, pause: int) -> None:
        """A rank is asked to pause; a hung one does not hear it."""
        node = self.nodes[rank.node]

        def out() -> None:
            if rank.mode == HUNG or rank.paused > pause or pause <= rank.era:
                return
            if rank.blank:  # it has nothing to report, but leaves what it is in
                rank.paused, rank.rebuilding = pause, 0
                return
            if rank.stage == COMMITTED and rank.mode == TRAINING and self.chance.random() < 0.5:
                rank.stage = COMPUTING  # the next step is begun before the pause is seen
            first = rank.paused < pause
            rank.paused, rank.rebuilding, rank.mode = pause, 0, HELD
            if first and self.likely(0.03):
                self.counts["answers lost"] += 1
                rank.paused = pause - 1
                return
            self.say(node, e.RankPaused(rank.number, rank.incarnation, pause, rank.position()))

        if rank.mode == TRAINING and self.likely(0.01):
            rank.mode = HUNG
        if self.likely(0.05):
            self.say(node, e.RankBusy(rank.number, rank.incarnation, pause, 30.0))
            self.after(self.chance.uniform(1.0, 40.0), self.alive(rank, out))
        else:
            self.after(self.chance.choice([0.001, 0.005, 0.7]), self.alive(rank, out))

    def replace(self, rank: Rank, incarnation: int) -> None:
        if incarnation <= rank.incarnation:
            return
        node = self.nodes[rank.node]
        fresh = Rank(rank.number, rank.node, incarnation, blank=True, begun=True, left=rank.left, paused=node.pause)
        rank.__dict__.update(fresh.__dict__)
        if self.likely(0.01):
            rank.mode = HUNG
        elif self.likely(0.1):
            self.after(self.chance.uniform(0.1, 2.0), self.alive(rank, lambda: self.die(rank, "left with exit code 3")))
        else:
            self.after(self.chance.uniform(0.1, 3.0), self.alive(rank, lambda: self.ready(rank)))

    def ready(self, rank: Rank) -> None:
        rank.mode = HELD
        self.say(self.nodes[rank.node], e.RankReady(rank.number, rank.incarnation))

    def rebuild(self, rank: Rank, command: c.Rebuild) -> None:
        if not rank.alive or rank.mode in (HUNG, ENDED) or rank.paused > command.pause or (rank.mode == TRAINING):
            return
        if self.likely(0.01):
            rank.mode = HUNG
            return
        if self.likely(0.02):
            self.after(0.05, self.alive(rank, lambda: self.die(rank, "was killed by SIGKILL")))
        rank.rebuilding, rank.era = command.generation, command.pause
        if all(r.alive and r.rebuilding == command.generation for r in self.ranks):
            for r in self.ranks:
                self.after(self.chance.uniform(0.01, 0.2), self.alive(r, lambda r=r: self.rebuilt(r, command.generation)))
        self.after(15.0, self.alive(rank, lambda: self.fail(rank, command.generation, command.generation)))

    def rebuilt(self, rank: Rank, generation: int) -> None:
        if rank.rebuilding == generation:
            rank.rebuilding = 0
            self.say(self.nodes[rank.node], e.RankRebuilt(rank.number, rank.incarnation, generation))

    def fail(self, rank: Rank, generation: int, still: int) -> None:
        if rank.rebuilding == still:
            rank.rebuilding = 0
            self.say(
                self.nodes[rank.node], e.RankFailed(rank.number, rank.incarnation, generation, "RuntimeError: it did not work")
            )

    def restore(self, rank: Rank, command: c.Restore) -> None:
        if rank.mode != HELD or rank.paused > command.pause:
            return
        if self.likely(0.02):
            self.die(rank, "was killed by SIGKILL")
        elif self.likely(0.03):
            rank.clean = False
            self.fail(rank, command.generation, rank.rebuilding)
        elif self.likely(0.005):
            rank.mode = HUNG
        else:
            rank.step, rank.stage, rank.clean, rank.blank = command.plan.step, COMPUTING, True, False
            digest = "ffff" if self.likely(0.002) else str(command.plan.step)
            self.say(self.nodes[rank.node], e.RankRestored(rank.number, rank.incarnation, command.generation, digest))

    def end(self, rank: Rank) -> None:
        if rank.mode != FINISHED:
            return
        if self.likely(0.01):
            self.die(rank, "left with exit code 1")
            return
        rank.mode = ENDED
        node = self.nodes[rank.node]
        self.say(node, e.RankEnded(rank.number, rank.incarnation))
        if all(r.mode == ENDED for r in node.ranks):
            self.say(node, e.AgentLeft(node.number, True))

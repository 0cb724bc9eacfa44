"""A manager's decisions for 100,000 ranks, on paper: the real `Coordinator` without sockets.

    python benchmarks/paper.py [--nodes 12500] [--ranks 8] [--json FILE]

Nodes, ranks and standbys are a few numbers here, and answer each order as real ones do, one event
at a time and in order. Their CPU time is not counted; the coordinator's is, for each part of a
job's life, and per rank. The largest message of each part is given as well: none may be longer than
`codec.MAX_BYTES`. Twice as many nodes may take twice as long: what takes four times as long is
quadratic.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from arguments import Arguments
from figures import Figures, publish

from taskd.core import commands as c
from taskd.core import events as e
from taskd.core.coordinator import Coordinator
from taskd.core.election.election import STANDBY, Election
from taskd.core.settings import Settings
from taskd.messages import (
    codec,
    from_agent,
    from_operator,
    from_rank,
    to_agent,
    to_operator,
    to_rank,
)
from taskd.messages.values import Message, Position, Voting

STEP = 100
LADDER = ("retry", "recover-in-place", "recover", "exit")
POSITION = Position(
    STEP,
    STEP,
    frozenset((STEP - 1, STEP)),
    frozenset((STEP,)),
    frozenset((STEP - 1, STEP)),
)
BEHIND = POSITION.but(clean=None)  # of a process that is gone, or from a keeper


class Job:
    """The agents and ranks of a job, and the manager that decides for them."""

    def __init__(self, nodes: int, each: int) -> None:
        self.nodes, self.each = nodes, each
        self.agents = [f"{n:032x}" for n in range(nodes)]  # as long as real names
        self.incarnations = [0] * (nodes * each)
        self.generation = self.interruption = 0
        self.stamp = (0, 0)
        self.keepers: dict[int, tuple[int, ...]] = {}
        self.new: set[int] = set()
        self.coming: deque[e.Event] = deque()
        self.cpu, self.longest, self.count = 0.0, ("", 0), 0
        self.orders: Counter[str] = Counter()
        self.manage("manager-1")
        self._answers: dict[type, Callable[[Any], Iterable[e.Event]]] = {
            to_rank.Interrupt: self._interrupt,
            to_rank.Rebuild: self._rebuild,
            to_rank.Restore: self._restore,
            to_rank.Resume: self._resume,
            to_agent.Replace: self._replace,
            to_agent.TakeOver: self._take_over,
            to_agent.KeepRecords: self._keep,
            to_agent.AskSteps: lambda order: (
                from_agent.StepsBegun(n, STEP) for n in range(self.nodes)
            ),
            to_rank.Pause: lambda order: self._all(from_rank.RankPaused, order.step),
            c.SendRoster: self._roster,
            c.RequestVotes: lambda order: (
                e.AgentVoted(agent, self.term, True) for agent in order.agents
            ),
            c.AskToRegister: lambda order: [
                self.joined(n) for n in range(self.nodes) if self.agents[n] in set(order.agents)
            ],
        }

    def manage(self, name: str, successor: bool = False) -> None:
        settings = Settings(self.nodes, self.each, LADDER)
        self.coordinator = Coordinator(settings, Election(name, successor, "10.0.0.0"))

    @property
    def term(self) -> int:
        return self.coordinator.election.candidate.term

    def node(self, rank: int) -> int:
        return rank // self.each

    def ranks(self, node: int) -> tuple[int, ...]:
        return tuple(range(node * self.each, (node + 1) * self.each))

    # -- what agents and ranks say -----------------------------------------------------------------

    def joined(self, node: int) -> from_agent.AgentJoined:
        ranks = self.ranks(node)
        return from_agent.AgentJoined(
            node,
            ranks,
            ("10.0.0.1", 1),
            incarnations=tuple(self.incarnations[r] for r in ranks),
            joined=ranks if self.generation else (),
            generation=self.generation,
            interruption=self.interruption,
            agent=self.agents[node],
            records=(f"10.{node >> 16}.{node >> 8 & 255}.{node & 255}", 1),
            keepers=self.keepers.get(node, ()),
        )

    def _all(self, kind: Any, *fields: Any, but: Iterable[int] = ()) -> Iterator[e.Event]:
        without = set(but)
        for rank, incarnation in enumerate(self.incarnations):
            if rank not in without:
                yield kind(rank, incarnation, *fields)

    def _interrupt(self, order: to_rank.Interrupt) -> Iterator[e.Event]:
        self.interruption = order.interruption
        return self._all(
            from_rank.RankInterrupted, order.interruption, POSITION, but=frozenset(self.new)
        )

    def _rebuild(self, order: to_rank.Rebuild) -> Iterator[e.Event]:
        self.generation = order.generation
        return self._all(from_rank.RankRebuilt, order.generation)

    def _restore(self, order: to_rank.Restore) -> Iterator[e.Event]:
        self.new.clear()
        return self._all(from_rank.RankRestored, order.generation, "digest")

    def _resume(self, order: to_rank.Resume) -> Iterator[e.Event]:
        if order.interruption:
            return self._all(from_rank.StepCommitted, order.generation, order.step)
        return iter(())

    def _replace(self, order: to_agent.Replace) -> Iterator[e.Event]:
        self.incarnations[order.rank] = order.incarnation
        self.new.add(order.rank)
        yield from_rank.RankReady(order.rank, order.incarnation)

    def _take_over(self, order: to_agent.TakeOver) -> Iterator[e.Event]:
        node, ranks = order.node, order.ranks
        self.agents[node] = order.agent
        for rank, incarnation in zip(ranks, order.incarnations, strict=True):
            self.incarnations[rank] = incarnation
        self.new |= set(ranks)
        yield from_agent.NodeTaken(
            node, order.agent, ("10.9.0.1", 1), ("10.9.0.1", 2), (BEHIND,) * len(ranks)
        )
        for rank in ranks:
            yield from_rank.RankReady(rank, self.incarnations[rank])

    def _keep(self, order: to_agent.KeepRecords) -> Iterator[e.Event]:
        self.keepers[order.node] = order.keepers
        return iter(())

    def _roster(self, order: c.SendRoster) -> Iterator[e.Event]:
        self.stamp = order.stamp
        self.measure(to_agent.RosterIs(order.stamp, order.members, (), self.nodes, self.each))
        return (e.RosterKept(agent, order.stamp) for agent in (*order.whole, *order.others))

    # -- the manager -------------------------------------------------------------------------------

    def measure(self, message: Message) -> None:
        size = len(codec.encode(message))
        if size > self.longest[1]:
            self.longest = type(message).__name__, size

    def tell(self, events: Iterable[e.Event]) -> None:
        """Give the events to the manager, and then those that its orders lead to."""
        for event in events:
            self._tell(event)
        while self.coming:
            self._tell(self.coming.popleft())

    def _tell(self, event: e.Event) -> None:
        begin = time.process_time_ns()
        commands = self.coordinator.step(event, time.monotonic())
        self.cpu += (time.process_time_ns() - begin) / 1e9
        self.count += 1
        for command in commands:
            self.orders[type(command).__name__] += 1
            if isinstance(command, Message) and not isinstance(command, to_operator.Answer):
                self.measure(command)
            if (answer := self._answers.get(type(command))) is not None:
                self.coming.extend(answer(command))


def parts(job: Job) -> Iterator[tuple[str, Iterable[e.Event]]]:
    """A job's life: a name, and the events that begin that part."""
    nodes = range(job.nodes)
    yield (
        "agents report their vote",
        (e.VoterStated(agent, 0, "", (0, 0), {}, False) for agent in job.agents),
    )
    yield "agents join", (job.joined(n) for n in nodes)
    yield "ranks join, are protected", job._all(from_rank.RankJoined)
    yield (
        "two standbys join",
        (from_agent.StandbyJoined(f"standby-{n}", job.each, ("10.9.0.1", 1)) for n in range(2)),
    )
    yield "agents join again", (job.joined(n) for n in nodes)
    yield "a collective fails", [from_rank.CollectiveFailed(0, 0, STEP, "reset by peer")]
    dead = len(job.incarnations) // 2
    yield (
        "a rank dies, all others notice",
        (
            from_agent.RankDied(dead, 0, "was killed", BEHIND),
            *job._all(from_rank.CollectiveFailed, STEP, "reset by peer", but=(dead,)),
        ),
    )
    job.new |= set(job.ranks(1))
    yield "a node is lost", [e.AgentLost(1, "it does not answer")]
    yield "ranks pause", [from_operator.PauseRequested("one")]
    yield "ranks go on", [from_operator.ContinueRequested("two")]
    job.manage("manager-2", successor=True)
    roster = {agent: Voting(n) for n, agent in enumerate(job.agents)}
    roster["standby-1"] = Voting(STANDBY)
    yield (
        "a new manager takes over",
        (
            e.VoterStated(agent, 1, "manager-1", job.stamp, roster if n < 5 else {}, False)
            for n, agent in enumerate(roster)
        ),
    )
    yield "ranks finish", job._all(from_rank.RankFinished, STEP + 10)


def live(nodes: int, each: int) -> list[dict[str, Any]]:
    job, rows = Job(nodes, each), []
    for name, events in parts(job):
        job.cpu, job.longest, job.count = 0.0, ("", 0), 0
        job.orders.clear()
        job.tell(events)
        orders = ", ".join(f"{kind} {n:,}" for kind, n in job.orders.items())
        print(f"{name}: {job.cpu:.2f} s, {job.count:,} events; {orders}", flush=True)
        rows.append(
            {
                "part": name,
                "events": job.count,
                "cpu": job.cpu,
                "longest": job.longest[0],
                "bytes": job.longest[1],
                "orders": dict(job.orders),
            }
        )
    return rows


def main() -> None:
    parser = Arguments(__doc__)
    parser.size("--nodes", 12_500, 10)
    parser.size("--ranks", 8, 2, help="on each node")
    args = parser.parse_args()
    rows = live(args.nodes, args.ranks)
    total = args.nodes * args.ranks
    table = Figures(
        f"{total:,} ranks on {args.nodes:,} nodes, on paper",
        "",
        "events",
        "CPU, s",
        "µs per event",
        "µs per rank",
        "largest message, kB",
    )
    for row in rows:
        table.add_row(
            row["part"],
            f"{row['events']:,}",
            f"{row['cpu']:.2f}",
            f"{1e6 * row['cpu'] / max(row['events'], 1):.1f}",
            f"{1e6 * row['cpu'] / total:.1f}",
            f"{row['bytes'] / 1000:.1f} {row['longest']}",
        )
    publish(args.json, table, rows=rows)


if __name__ == "__main__":
    main()

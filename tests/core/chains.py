"""The private state of each data rank, and where a `World` has it: in the memory of the process
that computes the rank's share, in records on its node, nested in those of a stand-in, at keepers,
and in the files that an agent has put in place for a stand-in.

The state is a number that says whose it is and how many steps it has seen, so a state that is lost,
repeated or another rank's is found in the step that uses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from taskd.core.job.snapshots import FINAL, PAUSED, PROVISIONAL, SLOTS
from taskd.messages.values import Position, Source
from tests.core.actors import COMMITTED, UPDATED, Node, Part, Rank
from tests.core.histories import after_steps

KEPT = 3  # by a keeper, of each rank, those that came last


def state(rank: int, steps: int) -> int:
    """The private state of a data rank that has seen that many steps."""
    return rank * 10**6 + steps


@dataclass
class Record:
    kind: int
    state: int
    nested: dict[int, int] = field(default_factory=dict)  # of the ranks that it stands in for


File = dict[int, Record]  # of one rank, by step


def newest(file: Mapping[int, Record]) -> File:
    return {step: replace(file[step]) for step in sorted(file)[-SLOTS:]}


def left_behind(file: File, replica_set: int) -> Position | None:
    """What an agent reads off the records of a rank without a process."""
    if not file:
        return None
    final = frozenset(s for s, record in file.items() if record.kind != PROVISIONAL)
    provisional = frozenset(file) - final
    return Position(max(file), None, final, provisional, replica_set=replica_set)


class Chains(Part):
    # -- a rank ------------------------------------------------------------------------------------

    def mine(self, rank: Rank) -> set[int]:
        """The ranks that it stands in for."""
        return {away for away, by in rank.stand_ins.items() if by == rank.number}

    def shares(self, rank: Rank) -> set[int]:
        return {rank.number, *self.mine(rank)}

    def file(self, rank: Rank) -> File:
        return self.world.nodes[rank.node].files.setdefault(rank.number, {})

    def start(self, rank: Rank) -> None:
        """Its script begins."""
        rank.private = {rank.number: state(rank.number, 0)}

    def begin(self, rank: Rank) -> None:
        """It begins a step, or stands at the end of its loop: the record of the start."""
        wrong = {d: s for d, s in rank.private.items() if s != state(d, rank.step)}
        assert not wrong, f"rank {rank.number} begins step {rank.step} with the states {wrong}"
        assert rank.private.keys() == self.shares(rank), (rank.private, rank.stand_ins)
        there = self.file(rank).get(rank.step)
        if there is None or there.kind == PAUSED or there.nested.keys() != self.mine(rank):
            self.write(rank, FINAL)
        else:
            there.kind = FINAL

    def pause(self, rank: Rank) -> None:
        self.write(rank, PAUSED)

    def compute(self, rank: Rank) -> None:
        """It computes its shares of the step, and enters the collective."""
        for number in rank.private:
            rank.private[number] += 1
        rank.did[rank.step] = (rank.generation, rank.stand_ins, frozenset(rank.private))

    def commit(self, rank: Rank) -> None:
        self.write(rank, PROVISIONAL)

    def write(self, rank: Rank, kind: int) -> None:
        mine, node = self.mine(rank), self.world.nodes[rank.node]
        nested = {d: rank.private[d] for d in mine}
        file = self.file(rank)
        file[rank.step] = Record(kind, rank.private[rank.number], nested)
        node.files[rank.number] = newest(file)
        self._copy(node, rank.number, rank.step, self._hosts(node.kept_by))

    def position(self, rank: Rank) -> Position:
        """What a rank reports of itself."""
        file, committed = self.file(rank), rank.stage == COMMITTED
        kept = after_steps(rank.step - committed, committed=committed)
        clean = rank.step if rank.stage != UPDATED and rank.clean else None
        left = left_behind(file, rank.replica_set) or Position(rank.step, None)
        return Position(
            rank.step,
            clean,
            left.final,
            left.provisional,
            kept.striped_steps,
            replica_set=rank.replica_set,
            members=self.world.members[rank.replica_set],
            inelastic=self.world.inelastic,
        )

    def restore(self, rank: Rank, step: int) -> str:
        """Take the states of its shares from the records of `step`; return which one is not there,
        "" if all are."""
        node, file = self.world.nodes[rank.node], self.file(rank)
        own = file.get(step)
        if own is None:
            return f"rank {rank.number} has no record of step {step}"
        found = {rank.number: own.state}
        for away in self.mine(rank):
            taken = node.taken.get(away, {}).get(step)
            if away in own.nested:
                found[away] = own.nested[away]
            elif taken is not None:
                found[away] = taken.state
            else:
                return f"rank {rank.number} stands in for {away} and has no record of step {step}"
        wrong = {d: s for d, s in found.items() if s != state(d, step)}
        assert not wrong, f"rank {rank.number} is taken to step {step} with the states {wrong}"
        for late in [s for s in file if s > step]:
            del file[late]
        rank.private = found
        return ""

    # -- a step ------------------------------------------------------------------------------------

    def check(self, rank: Rank) -> None:
        """The collective of the rank's step is over: each share was in it once."""
        step, world = rank.step, self.world
        members = [r for r in world.ranks if r.number not in rank.stand_ins]
        shares: list[int] = []
        for member in members:
            generation, stand_ins, did = member.did[step]
            assert generation == rank.generation, f"ranks of two generations meet in step {step}"
            assert stand_ins == rank.stand_ins, f"in step {step} ranks do not agree on who is away"
            shares += did
        assert sorted(shares) == [r.number for r in world.ranks], f"step {step} is made of {shares}"
        world.done.add(step)

    # -- nodes -------------------------------------------------------------------------------------

    def _hosts(self, agents: Iterable[str]) -> list[Node]:
        wanted = set(agents)
        return [n for n in self.world.nodes if n.agent in wanted and not n.gone]

    def _copy(self, node: Node, owner: int, step: int, hosts: Iterable[Node]) -> None:
        record = replace(node.files[owner][step])
        for host in hosts:
            kept = host.copies.setdefault(node.number, {})
            others = {s: r for s, r in kept.get(owner, {}).items() if s != step}
            # by arrival
            kept[owner] = dict([*others.items(), (step, record)][-KEPT:])
            host.since[node.number, owner] = host.generation

    def keep_at(self, node: Node, agents: tuple[str, ...]) -> None:
        """The agents keep the node's records from now on; new ones get all that exist."""
        new = self._hosts(set(agents) - set(node.kept_by))
        for owner, file in node.files.items():
            for host in new if file else ():
                host.copies.setdefault(node.number, {}).pop(owner, None)
            for step in sorted(file):
                self._copy(node, owner, step, new)

    def fetch(
        self, agent: str, number: int, ranks: Iterable[int], addresses: Iterable[tuple[str, int]]
    ) -> dict[int, File]:
        """The records of a node as one of those that have them hands them over."""
        world, best, wanted = self.world, dict[int, File](), set(ranks)
        for holder, _ in addresses:
            host = next((n for n in self._hosts([holder]) if not n.cut), None)
            if host is None:
                continue
            if world.coordinator.admission.may(host.number, number, agent, fetch=True) is None:
                self.counts["fetch refused"] += 1
                continue
            found = host.files if host.number == number else host.copies.get(number, {})
            found = {owner: newest(file) for owner, file in found.items() if file}
            if len(wanted & found.keys()) > len(wanted & best.keys()):
                best = found
        return best

    def pick(self, wanted: Iterable[int], found: Iterable[dict[int, File]]) -> dict[int, File]:
        """The newest records of the ranks `wanted`, their own and those nested in others'."""
        best: dict[int, File] = {rank: {} for rank in wanted}

        def add(owner: int, step: int, record: Record) -> None:
            before = best[owner].get(step) if owner in best else None
            if owner in best and (before is None or record.kind > before.kind):
                best[owner][step] = record

        for files in found:
            for owner, file in files.items():
                for step, record in file.items():
                    add(owner, step, record)
                    for inner, value in record.nested.items():
                        add(inner, step, Record(record.kind, value))
        return {owner: newest(file) for owner, file in best.items()}

    def gather(self, agent: str, sources: Iterable[Source]) -> list[dict[int, File]]:
        return [self.fetch(agent, *source) for source in sources]

    def keeps(self, node: Node) -> tuple[tuple[int, int, int], ...]:
        """What its agent says that it keeps: of each node since which generation, and the newest
        step of all its ranks."""
        return tuple(
            (
                number,
                min((node.since.get((number, owner), 0) for owner in files), default=0),
                min((next(reversed(file)) for file in files.values()), default=0),
            )
            for number, files in sorted(node.copies.items())
        )

    def kept_somewhere(self, rank: int) -> set[int]:
        """The steps of which an agent that is known to have them has records of the rank."""
        job, steps = self.world.coordinator.job, set[int]()
        for holder in job.held.get(rank, (rank,)):
            number = self.world.ranks[holder].node
            known = job.topology.nodes[number]
            for host in {number, *known.keepers}:
                node = self.world.nodes[host]
                if node.gone or node.cut or not job.topology.nodes[host].living:
                    continue
                files = node.files if host == number else node.copies.get(number, {})
                for owner, file in files.items():
                    steps |= {s for s, r in file.items() if rank == owner or rank in r.nested}
        return steps

    def saved(self, node: Node, step: int, lost: Iterable[tuple[int, int]]) -> set[int]:
        """The data ranks whose records of `step` the node's agent writes into a dump."""
        found = {d for d, file in node.taken.items() if step in file}
        for owner, file in node.files.items():
            if step in file:
                found |= {owner, *file[step].nested}
        for number, keeper in lost:
            if keeper == node.number:
                kept = node.copies.get(number, {})
                found |= {owner for owner, file in kept.items() if step in file}
        return found

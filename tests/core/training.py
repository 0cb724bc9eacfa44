"""How the ranks of the world train: they begin steps, wait in collectives, die and end."""

from __future__ import annotations

from collections.abc import Callable

from taskd.messages import from_agent, from_rank
from taskd.messages.values import Position
from tests.core.actors import (
    COMMITTED,
    COMPUTING,
    ENDED,
    FINISHED,
    FIRST,
    HELD,
    LIMIT,
    PATIENCE,
    PAUSED,
    TRAINING,
    UPDATED,
    Node,
    Part,
    Rank,
)


class Training(Part):
    def alive(self, rank: Rank, action: Callable[[], None]) -> Callable[[], None]:
        """Return `action` guarded: it runs only if the process is still the same."""
        process = rank.process

        def act() -> None:
            if rank.alive and rank.process is process and not self.world.over:
                action()

        return act

    def position(self, rank: Rank) -> Position:
        return self.world.chains.position(rank) if self.world.elastic else rank.position()

    def join(self, rank: Rank) -> None:
        if self.likely(0.01):
            self.die(rank, "died while forming")
            return
        rank.begun = True
        self.tell(rank, from_rank.RankJoined)

    def die(self, rank: Rank, cause: str) -> None:
        if not rank.alive or rank.mode == ENDED:
            return
        node = self.world.nodes[rank.node]
        if not rank.stateless:
            at = self.position(rank) if node.protected else None
            rank.left = self.leaves(rank, at) if at else None
            rank.record = self.world.cluster.kept(rank) if at else rank.record
        rank.alive, rank.died = False, self.world.now
        self.counts["deaths"] += 1
        told = None if rank.stateless and self.chance.random() < 0.5 else rank.left
        self.tell(rank, from_agent.RankDied, cause, told)
        self._others_lose_collectives()

    def leaves(self, rank: Rank, at: Position) -> Position:
        """What its records tell once it is dead. Nothing changes between two steps."""
        begun = at.final - {at.step} if rank.stage == COMMITTED else at.final
        return at.but(clean=None, promoted=begun)

    def quit(self, rank: Rank) -> None:
        """Exit the script in the middle of its loop."""
        node = self.world.nodes[rank.node]
        if not rank.alive or rank.stateless or rank.mode != TRAINING or not node.protected:
            return
        at = self.position(rank)
        rank.left, rank.record = self.leaves(rank, at), self.world.cluster.kept(rank)
        rank.alive, rank.quit = False, True
        rank.left_loop = rank.stage == COMMITTED
        self.tell(rank, from_agent.RankEnded, rank.step, rank.left, rank.left_loop)
        self._others_lose_collectives()

    def _others_lose_collectives(self) -> None:
        for other in self.world.ranks:
            if other.alive and other.mode == TRAINING and self.chance.random() < 0.3:
                self.later(
                    other,
                    self.chance.choice([0.0, 0.001, 5.0]),
                    lambda o=other: self.lose_collective(o),
                )

    def lose_collective(self, rank: Rank) -> None:
        if rank.mode == TRAINING and rank.stage != COMMITTED and rank.slow <= self.world.now:
            rank.mode = HELD
            rank.evidence["lost a collective"] += 1
            self.tell(rank, from_rank.CollectiveFailed, rank.step, "Connection closed by peer")

    def begin(self, rank: Rank) -> None:
        """Run the top of the loop: its end, a pause, or the next step."""
        node = self.world.nodes[rank.node]
        if rank.step >= self.world.total:
            # the end of the pass is recorded like the start of a step
            rank.mode, rank.stage = FINISHED, COMPUTING
            if self.world.elastic:
                self.world.chains.begin(rank)
            self.tell(rank, from_rank.RankFinished, rank.step)
        elif node.pause is not None and rank.step >= node.pause:
            rank.mode, rank.recorded = PAUSED, rank.step
            if self.world.elastic:
                self.world.chains.pause(rank)
            self.tell(rank, from_rank.RankPaused, rank.step)
        else:
            self.world.invariants.begins(rank)
            if self.world.elastic:
                self.world.chains.begin(rank)
            rank.mode, rank.stage, rank.entered = TRAINING, COMPUTING, False
            rank.since = self.world.now
            self.world.nemesis.in_user_code(rank)
            self.move(rank)
            self.next(rank, self.chance.uniform(0.01, 0.2))

    def next(self, rank: Rank, delay: float) -> None:
        """Train on after `delay`, unless rescheduled before."""
        rank.turn = turn = rank.turn + 1
        self.later(rank, delay, lambda: self.train(rank) if rank.turn == turn else None)

    def move(self, rank: Rank) -> None:
        """Note progress; report the rank as stalled if it then makes none for too long."""
        rank.beat = beat = self.world.now
        self.later(rank, LIMIT if rank.steps else FIRST, lambda: self.complain(rank, beat))

    def complain(self, rank: Rank, beat: float, times: int = 1) -> None:
        if rank.beat != beat or times > 25:  # the cause has been found by then
            return
        if self.world.nodes[rank.node].protected and rank.overdue(self.world.now):
            self.tell(rank, from_agent.RankStalled, rank.step, self.world.now - rank.beat)
        self.later(rank, LIMIT, lambda: self.complain(rank, beat, times + 1))

    def arrived(self, rank: Rank) -> bool:
        """Whether all ranks have entered the collective."""
        return not (self.world.jam and rank.step >= self.world.jam_from) and all(
            o.alive
            and not o.stateless
            and o.generation == rank.generation
            and (o.step > rank.step or (o.step == rank.step and o.stage != COMMITTED and o.entered))
            for o in self.world.ranks
            if o.number not in rank.stand_ins
        )

    def train(self, rank: Rank) -> None:
        """Move from stage to stage; the update of a step comes once all ranks have begun it."""
        if rank.mode != TRAINING:
            return
        node, waits = self.world.nodes[rank.node], False
        if rank.slow > self.world.now:
            self.next(rank, rank.slow - self.world.now)
            return
        if rank.stage == COMPUTING and not rank.entered:
            if rank.bad:
                self.world.nemesis.lose_page(rank, rank.bad)
                return
            rank.entered = True
            if self.world.elastic:
                self.world.chains.compute(rank)
            self.move(rank)
            if self.arrived(rank):  # waiting ranks notice at once
                for other in self.world.ranks:
                    if (
                        other.mode == TRAINING
                        and other.entered
                        and other.stage == COMPUTING
                        and other.step == rank.step
                    ):
                        self.next(other, self.chance.choice([0.0001, 0.005]))
                return
        elif rank.stage == COMPUTING:
            if self.world.nemesis.link_is_broken(rank):
                self.lose_collective(rank)
                return
            if self.arrived(rank):
                rank.stage, rank.clean = UPDATED, False
                if self.world.elastic:
                    self.world.chains.check(rank)
            elif self.world.now - rank.since > (
                3 * PATIENCE if self.world.jam else PATIENCE
            ) and all(o.slow <= self.world.now for o in self.world.ranks):
                self.lose_collective(rank)
                return
            else:
                waits = True
        elif rank.stage == UPDATED:
            rank.step, rank.steps = rank.step + 1, rank.steps + 1
            rank.stage, rank.clean = COMMITTED, True
            rank.beat = self.world.now
            if self.world.elastic:
                self.world.chains.commit(rank)
            if not rank.told:
                rank.told = True
                self.tell(rank, from_rank.StepCommitted, node.generation, rank.step - 1)
        else:
            self.begin(rank)
            return
        if not waits:
            rank.cpu += 1.0
        self.world.nemesis.strike(rank)
        long = waits and self.world.now - rank.since > 1.0
        self.next(rank, self.chance.uniform(0.2, 1.0) if long else self.chance.uniform(0.01, 0.2))

    def leave_well(self, node: Node) -> None:
        ranks = [r for r in node.ranks if not r.away]  # if all are, they may come back
        if ranks and all(r.mode == ENDED or r.quit for r in ranks):
            self.say(node, from_agent.AgentLeft(node.number, True))

    def end(self, rank: Rank) -> None:
        if rank.mode != FINISHED:
            return
        if self.likely(0.01):
            self.die(rank, "left with exit code 1")
            return
        rank.mode = ENDED
        node = self.world.nodes[rank.node]
        self.tell(rank, from_agent.RankEnded)
        self.leave_well(node)

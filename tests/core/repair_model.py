"""A model of ranks that train, are killed and are repaired.

A rank's replicated state is its number of updates, and how often the code between two passes has
changed it; its private state is a number that every step and all user code between steps change.
The undisturbed run's state at the start of each step is known, so a state that mixes steps is
detected.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from taskd.core.incident.repair import Member, Refusal, plan
from taskd.core.job.snapshots import (
    FINAL,
    PASS_END,
    PROMOTED,
    PROVISIONAL,
    SLOTS,
    Snapshots,
    drifting,
)
from taskd.worker.training.pace import Pace

DRIFT = 100  # what user code between two steps adds to the private state, at some steps


@dataclass
class Rank:
    number: int
    node: int
    replica_set: int = 0
    trained: int | None = 0  # updates in memory; None: half written
    averaged: int = 0  # by the code between two passes, which is replicated state too
    ended: int | None = None  # `averaged` at the end of the pass before the present step
    ran: bool = False  # the code between the two
    private: int = 0
    step: int = 0
    stage: int = 0
    alive: bool = True
    most: int = SLOTS
    recorded: int | None = None  # the private state at the last commit, while it can be compared
    # (step, kind, private): of a step that was not recorded; dies with the process
    start: tuple[int, int, int] | None = None
    pace: Pace = field(default_factory=Pace)
    kept: Snapshots = field(default_factory=Snapshots)  # outlives the rank, as do the next two
    privates: dict[tuple[int, int], int] = field(default_factory=dict)  # (step, kind) -> private
    shards: dict[int, tuple[int, int]] = field(default_factory=dict)  # step -> trained, averaged
    drifted: set[int] = field(default_factory=set)
    changed: set[int] = field(default_factory=set)

    def position(self):
        if not self.alive:
            return self.kept.left(self.replica_set)
        clean = self.trained if self.trained == self.step else None
        if self.ended not in (None, self.averaged):
            if self.stage <= STAGES.index(World.enter):
                clean = None
            self.changed = drifting(self.changed, self.step)
        at = self.kept.position(
            self.step, clean, frozenset(self.drifted), replica_set=self.replica_set
        ).but(changed=frozenset(self.changed))
        if self.start is None or clean is None:
            return at
        if self.start[1] == FINAL:
            return at.but(final=at.final | {self.step})
        return at.but(provisional=at.provisional | {self.step})

    def write(self, kind):
        self.kept.write(self.step, kind, most=self.most)
        self.privates[self.step, kind] = self.private

    def private_at(self, step):
        """Return the private state in the newest record of `step`."""
        if step not in self.kept.final | self.kept.provisional:
            return self.start[2]
        return self.privates[max(r for r in self.kept.records if r is not None and r[0] == step)]


class World:
    """Ranks that train together. `advance` moves one rank by one stage, the unit that a kill can
    leave half done."""

    def __init__(
        self, per_node, nodes, drifting, striped=True, every=1, sets=1, most=SLOTS, passes=()
    ):
        self.most, self.passes = most, frozenset(passes)
        self.ranks = [
            Rank(n, n // per_node, n % sets, most=most, pace=Pace(every))
            for n in range(per_node * nodes)
        ]
        self.every = every
        self.drifting, self.striped = drifting, striped
        self.resumed = None
        self.repairs = 0

    def right(self, step):
        """Return the private state at the start of `step` in the undisturbed run."""
        return step + DRIFT * sum(1 for d in self.drifting if d <= step)

    def averaged(self, step):
        """How often the code between passes has changed the state at the start of `step`."""
        return sum(1 for p in self.passes if p <= step)

    def passed(self, rank, stage):
        """Whether all ranks have reached `stage` of this rank's step, which ends its collective."""
        return all((r.step, r.stage) >= (rank.step, stage) for r in self.ranks)

    def advance(self, r):
        """Run one stage of a living rank; return False if it is blocked in a collective."""
        stage = STAGES[r.stage]
        if stage(self, r) is False:
            return False
        r.stage += 1
        if r.stage == len(STAGES):
            r.stage = 0
        return True

    def between(self, r):
        """Run user code between two steps; then the loop asks for the next one. Survivors can be
        interrupted here."""
        if r.step in self.passes:
            if not self.passed(r, STAGES.index(World.between)):
                return False
            r.ran, r.recorded = True, None
            r.averaged += 1
            r.pace.begin_pass(r.step)
        if r.step in self.drifting and (r.recorded is not None or r.ran):
            r.private += DRIFT
        return True

    def end(self, r):
        if r.step in self.passes:
            r.ended, r.ran, r.start = r.averaged, False, None
            r.write(PASS_END)

    def enter(self, r):
        if r.ended not in (None, r.averaged):
            r.changed = drifting(r.changed, r.step)
        if r.recorded not in (None, r.private):
            r.drifted = drifting(r.drifted, r.step)
        r.start = None
        if not r.pace.due(r.step):
            r.start = (r.step, FINAL, r.private)
        elif r.recorded == r.private and r.kept.has(r.step, PROVISIONAL):
            r.kept.promote(r.step)
            r.privates[r.step, PROMOTED] = r.private
        else:
            r.kept.begin(r.step, self.most)

    def entered(self, r):
        begun = any(r.kept.has(r.step, kind) for kind in (FINAL, PROMOTED))
        if r.pace.due(r.step) and not begun:
            r.write(FINAL)

    def stripe(self, r):
        # a repeated step: what is there is not cleared for the same
        if r.pace.due(r.step) and r.step not in r.kept.striped_steps:
            r.kept.stripe(r.step)

    def striped_(self, r):
        if self.striped and r.pace.due(r.step):
            r.kept.striped(r.step)
            r.shards[r.step] = r.trained, r.averaged
            r.pace.recorded(r.step)

    def compute(self, r):
        r.private += 1

    def reduce(self, r):
        return self.passed(r, AT_REDUCE)

    def update(self, r):
        assert r.trained == r.step, (
            f"rank {r.number} trains step {r.step} on the state of {r.trained}"
        )
        assert r.private == self.right(r.step) + 1, (
            f"rank {r.number} trains step {r.step} with another step's random numbers"
        )
        assert r.averaged == self.averaged(r.step), (
            f"rank {r.number} has run the code before step {r.step} once more, or once less"
        )
        r.trained = None

    def updated(self, r):
        r.trained = r.step + 1

    def tail(self, r):
        return self.passed(r, AT_TAIL)

    def commit(self, r):
        if self.every == 1:
            r.kept.begin(r.step + 1, self.most)

    def committed(self, r):
        r.step, r.ended, r.ran = r.step + 1, None, False
        if self.every == 1:
            r.write(PROVISIONAL)
        else:
            r.start = (r.step, PROVISIONAL, r.private)
        r.recorded = r.private

    # -- faults

    def leave(self, chance):
        """Interrupt the survivors: each runs to a point where it can be interrupted, or further, as
        far as the dead ranks allow."""
        for r in chance.sample(self.ranks, len(self.ranks)):
            while r.alive and (r.stage not in OUT or chance.random() < 0.3):
                if not self.advance(r):
                    break

    def repair(self, chance, harm=0.0):
        """Run one round. With `harm`, some ranks complete it, some half, some not at all. Returns
        False if there is no plan."""
        members = [Member(r.number, r.node, r.alive, r.position()) for r in self.ranks]
        found = plan(members, self.resumed)
        if isinstance(found, Refusal):
            return False
        self.resumed, step = found.step, found.step
        last = max(r.step for r in self.ranks if r.alive or r.position())
        assert 0 <= last - step <= 2 * self.every
        # its batches are still there
        over = {r.number: any(step < p <= r.step for p in self.passes) for r in self.ranks}
        assert all(
            step >= r.pace.oldest(r.step) for r in self.ranks if r.alive and not over[r.number]
        )
        before = {r.number: r.trained if r.alive else None for r in self.ranks}
        done = set()
        for number in (*found.keep, *found.stripes, *(d for d, _ in found.copies)):
            r = self.ranks[number]
            if chance.random() < harm:
                if number not in found.keep and chance.random() < 0.5:
                    r.trained = None
                continue
            if number in found.keep:
                assert before[number] == step
            elif number in found.stripes:
                near = [o for o in self.ranks if (o.node, o.replica_set) == (r.node, r.replica_set)]
                kept = [o.shards[step] if step in o.kept.stripes else None for o in near]
                assert kept == [(step, self.averaged(step))] * len(kept), (
                    f"the stripes of step {step} on node {r.node} are {kept}"
                )
                r.trained, r.averaged = kept[0]
            else:
                source = dict(found.copies)[number]
                if source not in done:
                    continue  # the source was killed
                assert self.ranks[source].replica_set == r.replica_set
                r.trained, r.averaged = self.ranks[source].trained, self.ranks[source].averaged
            # the code between two passes has run here and will not run again, or it still will
            ended = r.kept.has(step, PASS_END) or r.kept.has(step, PROVISIONAL)
            here = r.alive and r.ran and r.step == step and ended
            again = step in self.passes and ended and not here
            private = r.private if here else r.private_at(step)
            right = self.right(step) - DRIFT * (again and step in self.drifting)
            assert private == right, f"rank {number} is at step {step} with another private state"
            r.private, r.step = private, step
            r.stage = STAGES.index(World.end if again else World.enter)
            if not here:
                r.ran, r.ended = False, None
            r.kept.go_back(step)
            r.start = None if r.start and r.start[0] > step else r.start
            r.pace.go_back(step, self.every)
            r.recorded, r.drifted = None, {s for s in r.drifted if s < step}
            r.changed = {s for s in r.changed if s < step}
            done.add(number)
        if len(done) == len(self.ranks):
            assert {r.trained for r in self.ranks} == {step}, "a mixture of steps was resumed"
            for r in self.ranks:
                r.alive = True
            self.repairs += 1
            return True
        return None


STAGES = [
    World.end, World.between, World.enter, World.entered, World.stripe, World.striped_,
    World.compute, World.reduce, World.update, World.updated, World.tail, World.commit,
    World.committed,
]  # fmt: skip
AT_REDUCE, AT_TAIL = STAGES.index(World.reduce), STAGES.index(World.tail)
# where a rank notices an interruption, or an interruption breaks its collective
OUT = {STAGES.index(World.enter), AT_REDUCE, AT_TAIL}


def started(per_node, nodes, drifting, **options):
    """Return a world in which all ranks have begun step 0. `sets`: of replicas; `most`: records of
    a rank; `passes`: the steps before which one ends."""
    world = World(per_node, nodes, drifting, **options)
    for r in world.ranks:
        while r.stage < AT_REDUCE:
            world.advance(r)
    return world


def life(world, chance, faults, steps=1000):
    """Train, kill and repair until `faults` are repaired; return False if there was no plan."""
    for _ in range(faults):
        for _ in range(chance.randrange(steps)):
            world.advance(chance.choice(world.ranks))
        while True:
            for r in chance.sample(
                world.ranks,
                chance.choice([1, 1, 1, 2, len(world.ranks)]) if len(world.ranks) > 1 else 1,
            ):
                r.alive, r.trained = False, None
            world.leave(chance)
            if (outcome := world.repair(chance, harm=chance.choice([0.0, 0.0, 0.4]))) is not None:
                break
        if outcome is False:
            return False
    for _ in range(200):
        world.advance(chance.choice(world.ranks))
    return True

"""repair.plan against the rules of its docstring, said a second time and differently; and in a
model of ranks that train and are killed anywhere."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskd.core.repair import Member, Refusal, plan
from taskd.core.snapshots import FINAL, PROVISIONAL, Snapshots, drifting
from taskd.messages.values import Plan, Position

# -- the rules, a second time ----------------------------------------------------------------------


def knows(member, members, step, resumed=None):
    """Whether the private state of `member` at the start of `step` is known."""
    if step in member.position.final:
        return True
    if step not in member.position.provisional:
        return False
    living = [m.position for m in members if m.alive]
    return step == resumed or (
        any(step in p.final for p in living) and all(step not in p.drifted for p in living)
    )


def whole(member, members, step):
    """Whether the node of `member` has the training state of its shard at the start of `step` in
    stripes."""
    return all(
        step in m.position.stripes
        for m in members
        if (m.node, m.shard) == (member.node, member.shard)
    )


def clean(member, step):
    return member.alive and member.position.clean == step


def held(shard, members, step):
    return any(clean(m, step) or whole(m, members, step) for m in members if m.shard == shard)


def possible(members, step, resumed=None):
    return all(knows(m, members, step, resumed) and held(m.shard, members, step) for m in members)


STEPS = range(6)

# -- any reports at all ----------------------------------------------------------------------------

steps = st.frozensets(st.sampled_from([3, 4, 5]), max_size=3)
mostly = st.one_of(st.just(frozenset({3, 4, 5})), st.just(frozenset({4, 5})), steps)


@st.composite
def jobs(draw, unknown=False):
    nodes = draw(st.integers(1, 3))
    shards = draw(st.sampled_from([1, 1, 1, 2]))
    members = []
    for rank in range(draw(st.integers(1, 6))):
        position = Position(
            step=draw(st.integers(3, 5)),
            clean=draw(st.sampled_from([None, None, 3, 4, 5])),
            final=draw(mostly),
            provisional=draw(steps),
            stripes=draw(mostly),
            drifted=draw(st.one_of(st.just(frozenset()), steps)),
        )
        nothing = unknown and draw(st.integers(0, 3)) == 0
        members.append(
            Member(
                rank,
                rank % nodes,
                draw(st.booleans()),
                None if nothing else position,
                rank // nodes % shards,
            )
        )
    return members


@given(jobs(), st.sampled_from([None, None, 3, 4, 5]))
@settings(max_examples=600, deadline=None)
def test_the_plan_follows_the_rules(members, resumed):
    found = plan(members, resumed)
    best = max((s for s in STEPS if possible(members, s, resumed)), default=None)
    assert found.reason
    if best is None:
        assert isinstance(found, Refusal)
        return
    assert isinstance(found, Plan)
    assert found.step == best
    of = {m.rank: m for m in members}
    destinations = [d for d, _ in found.copies]
    assert sorted([*found.keep, *found.stripes, *destinations]) == sorted(of)
    assert set(found.keep) == {m.rank for m in members if clean(m, best)}
    assert set(found.stripes) == {
        m.rank for m in members if not clean(m, best) and whole(m, members, best)
    }
    have = {*found.keep, *found.stripes}
    given_by: dict[int, int] = {}
    for destination, source in found.copies:
        like = {r for r in have if of[r].shard == of[destination].shard}
        assert source in like
        near = {r for r in like if of[r].node == of[destination].node}
        pool = near or like
        assert source in pool, "a source on the same node was not taken"
        assert given_by.get(source, 0) == min(given_by.get(r, 0) for r in pool), (
            "sources are not taken in turn"
        )
        given_by[source] = given_by.get(source, 0) + 1


@given(jobs(unknown=True), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_the_order_of_the_ranks_is_irrelevant(members, chance):
    shuffled = members[:]
    chance.shuffle(shuffled)
    assert plan(shuffled) == plan(members)


@given(jobs(unknown=True))
@settings(deadline=None)
def test_no_plan_without_a_record_of_every_rank(members):
    silent = [m.rank for m in members if m.position is None]
    if silent:
        found = plan(members)
        assert isinstance(found, Refusal)
        assert all(str(r) in found.reason for r in silent)


def step_of(found):
    return found.step if isinstance(found, Plan) else -1


@given(jobs(), st.data())
@settings(max_examples=300, deadline=None)
def test_more_information_never_lowers_the_step(members, data):
    before = step_of(plan(members))
    index = data.draw(st.integers(0, len(members) - 1))
    at, step = members[index].position, data.draw(st.sampled_from([3, 4, 5]))
    what = data.draw(st.sampled_from(["final", "provisional", "stripes", "clean", "drifted"]))
    if what == "clean":
        if at.clean is not None:
            return
        at = at.but(clean=step)
    elif what == "drifted":
        at = at.but(drifted=frozenset())
    else:
        at = at.but(**{what: getattr(at, what) | {step}})
    members[index] = replace(members[index], position=at)
    assert step_of(plan(members)) >= before


def test_nobody():
    assert isinstance(plan([]), Refusal)


# -- the words -------------------------------------------------------------------------------------


def at(step, clean=None, final=(), provisional=(), stripes=(), drifted=()):
    return Position(step, clean, *(frozenset(x) for x in (final, provisional, stripes, drifted)))


@pytest.mark.parametrize(
    ("members", "words"),
    [
        (
            [
                Member(0, 0, True, at(5, 5, {4, 5})),
                Member(1, 0, False, at(5, None, {4, 5})),
                Member(2, 1, True, at(6, None, {5, 6})),
            ],
            (
                "step 5 is the last that every rank has begun: rank 2 ahead, taken back, rank 1"
                " from rank 0; rank 2 from rank 0, rank 0 as they are"
            ),
        ),
        (
            [Member(r, 0, False, at(5, None, {4, 5}, (), {4} if r else {4, 5})) for r in (0, 1)],
            (
                "at step 5 nobody holds the state of shard 0: no rank's memory is unchanged and no"
                " node's stripes are complete; step 4 is the last before: ranks 0,1 ahead, taken"
                " back, ranks 0,1 from the node's stripes"
            ),
        ),
        (
            [Member(0, 0, True, at(5, 5, {5})), Member(1, 0, False, None)],
            "rank 1 left no record of where it was",
        ),
        (
            [Member(0, 0, False, None), Member(1, 0, False, None)],
            "ranks 0,1 left no record of where they were",
        ),
        (
            [Member(0, 0, True, at(5, 5, {5})), Member(1, 0, False, at(4, None))],
            "no step has the entry state of every rank (rank 0: [5], rank 1: none)",
        ),
    ],
)
def test_reason(members, words):
    assert plan(members).reason == words


# -- a model ---------------------------------------------------------------------------------------
#
# A rank's training state is the number of updates it has had, its private state a number that
# every step and every piece of user code between steps changes. What the undisturbed run has at the
# start of a step is known: a state that mixes steps is seen.

DRIFT = 100  # what user code between two steps adds to the private state, at some steps


@dataclass
class Rank:
    number: int
    node: int
    trained: int | None = 0  # updates in memory; None: half written
    private: int = 0
    step: int = 0
    stage: int = 0
    alive: bool = True
    recorded: int | None = None  # the private state at the commit before, while it can be compared
    kept: Snapshots = field(default_factory=Snapshots)  # outlives the rank, as do:
    privates: dict[tuple[int, int], int] = field(default_factory=dict)  # (step, kind) -> private
    shards: dict[int, int] = field(default_factory=dict)  # step -> trained
    drifted: set[int] = field(default_factory=set)

    def position(self):
        if not self.alive:
            return self.kept.left()
        clean = self.trained if self.trained == self.step else None
        return self.kept.position(self.step, clean, frozenset(self.drifted))

    def write(self, kind):
        self.kept.write(self.step, kind)
        self.privates[self.step, kind] = self.private

    def private_at(self, step):
        """By its newest record."""
        return self.privates[max(r for r in self.kept.records if r is not None and r[0] == step)]


class World:
    """Ranks that train together. `advance` moves one rank by one stage; a stage is what a kill can
    find half done."""

    def __init__(self, per_node, nodes, drifting, striped=True):
        self.ranks = [Rank(n, n // per_node) for n in range(per_node * nodes)]
        self.drifting, self.striped = drifting, striped
        self.resumed = None
        self.repairs = 0

    def right(self, step):
        """The private state at the start of `step` in the undisturbed run."""
        return step + DRIFT * sum(1 for d in self.drifting if d <= step)

    def passed(self, rank, stage):
        """Whether everybody has come as far as `stage` of this rank's step: a collective in it
        ends."""
        return all((r.step, r.stage) >= (rank.step, stage) for r in self.ranks)

    def advance(self, r):
        """One stage of a living rank; False when it is blocked in a collective."""
        stage = STAGES[r.stage]
        if stage(self, r) is False:
            return False
        r.stage += 1
        if r.stage == len(STAGES):
            r.stage = 0
        return True

    def between(self, r):
        """User code between two steps; then the loop asks for the next one. Survivors may be called
        out from here."""
        if r.step in self.drifting and r.recorded is not None:
            r.private += DRIFT

    def enter(self, r):
        if r.recorded is not None and r.recorded != r.private:
            r.drifted = drifting(r.drifted, r.step)
        if r.recorded == r.private:
            r.kept.promote(r.step)
            r.privates[r.step, FINAL] = r.private
        else:
            r.kept.begin()

    def entered(self, r):
        if r.recorded != r.private:
            r.write(FINAL)

    def stripe(self, r):
        r.kept.stripe(r.step)

    def striped_(self, r):
        if self.striped:
            r.kept.striped(r.step)
            r.shards[r.step] = r.trained

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
        r.trained = None

    def updated(self, r):
        r.trained = r.step + 1

    def tail(self, r):
        return self.passed(r, AT_TAIL)

    def commit(self, r):
        r.kept.begin()

    def committed(self, r):
        r.step += 1
        r.write(PROVISIONAL)
        r.recorded = r.private

    # -- faults

    def leave(self, chance):
        """Survivors come out: each goes on to where it can be called out, or further, as far as the
        dead let it."""
        for r in chance.sample(self.ranks, len(self.ranks)):
            while r.alive and (r.stage not in OUT or chance.random() < 0.3):
                if not self.advance(r):
                    break

    def repair(self, chance, harm=0.0):
        """One round. With `harm`, some ranks get through, some half, some not at all. False: there
        is no plan."""
        members = [Member(r.number, r.node, r.alive, r.position()) for r in self.ranks]
        found = plan(members, self.resumed)
        if isinstance(found, Refusal):
            return False
        self.resumed, step = found.step, found.step
        assert 0 <= max(r.step for r in self.ranks if r.alive or r.position()) - step <= 2
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
                near = [o for o in self.ranks if o.node == r.node]
                kept = [o.shards[step] if step in o.kept.stripes else None for o in near]
                assert kept == [step] * len(kept), (
                    f"the stripes of step {step} on node {r.node} are {kept}"
                )
                r.trained = step
            else:
                source = dict(found.copies)[number]
                if source not in done:
                    continue  # the source was killed
                r.trained = self.ranks[source].trained
            private = r.private_at(step)
            assert private == self.right(step), (
                f"rank {number} is taken to step {step} with another private state"
            )
            r.private, r.step, r.stage = private, step, STAGES.index(World.enter)
            r.kept.go_back(step)
            r.recorded, r.drifted = None, {s for s in r.drifted if s < step}
            done.add(number)
        if len(done) == len(self.ranks):
            assert {r.trained for r in self.ranks} == {step}, "a mixture of steps was resumed"
            for r in self.ranks:
                r.alive = True
            self.repairs += 1
            return True
        return None


STAGES = [
    World.between,
    World.enter,
    World.entered,
    World.stripe,
    World.striped_,
    World.compute,
    World.reduce,
    World.update,
    World.updated,
    World.tail,
    World.commit,
    World.committed,
]
AT_REDUCE, AT_TAIL = STAGES.index(World.reduce), STAGES.index(World.tail)
# where a pause is looked at, or breaks a collective
OUT = {STAGES.index(World.enter), AT_REDUCE, AT_TAIL}


def started(per_node, nodes, drifting, striped=True):
    """A world in which everybody has begun step 0."""
    world = World(per_node, nodes, drifting, striped)
    for r in world.ranks:
        while r.stage < AT_REDUCE:
            world.advance(r)
    return world


def life(world, chance, faults, steps=1000):
    """Train; kill; repair; until `faults` have been repaired. True; or False when there was no
    plan."""
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


@pytest.mark.parametrize("block", range(4))
def test_killed_anywhere_the_ranks_train_on_as_if_nothing_had_been(block):
    for seed in range(block * 100, block * 100 + 100):
        _killed_anywhere(seed)


def _killed_anywhere(seed):
    chance = random.Random(seed)
    drifting = {s for s in range(1, 300) if chance.random() < chance.choice([0, 0.3, 1])}
    world = started(*chance.choice([(2, 1), (3, 1), (2, 2), (1, 3)]), drifting)
    if not life(world, chance, faults=8, steps=chance.choice([3, 30, 120])):
        assert not any(r.alive for r in world.ranks), "there was a survivor, and still no plan"
    else:
        assert world.repairs == 8


def test_without_stripes_a_tail_that_was_cut_is_refused_and_never_guessed():
    for seed in range(60):
        world = started(3, 1, set(), striped=False)
        # what it asserts is that nobody trains on a mixture
        life(world, random.Random(seed), faults=8, steps=40)


@pytest.mark.parametrize("changed", [set(), {4}, {5}], ids=["no drift", "before", "after"])
def test_killed_at_every_stage(changed):
    """Two ranks; rank 1 is killed at each stage of step 4 while rank 0 stands at each other one
    that can be."""
    for first in range(len(STAGES)):
        for second in range(len(STAGES)):
            _killed_at(first, second, changed)


def _killed_at(first, second, changed):
    world = started(2, 1, changed)
    for r in world.ranks:
        other = world.ranks[1 - r.number]
        while (r.step, r.stage) < (4, 0):
            world.advance(r) or world.advance(other)
    survivor, victim = world.ranks
    for r, stage in ((survivor, first), (victim, second), (survivor, first)):
        while (r.step, r.stage) < (4, stage) and world.advance(r):
            pass
    victim.alive, victim.trained = False, None
    chance = random.Random(first * 100 + second)
    world.leave(chance)
    assert world.repair(chance)
    for _ in range(100):
        for r in world.ranks:
            world.advance(r)
    assert min(r.step for r in world.ranks) > 5

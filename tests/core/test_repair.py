"""repair.plan against an independent statement of its rules, and in a model of ranks that train and
are killed anywhere."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskd.core.incident.repair import Member, Refusal, plan
from taskd.core.job.snapshots import FEW, SLOTS
from taskd.messages.values import Plan, Position
from tests.core.repair_model import STAGES, life, started

# -- the rules, a second time ----------------------------------------------------------------------


def knows(member, members, step, resumed=None):
    """Whether the private state of `member` at the start of `step` is known."""
    if step in member.position.final:
        return True
    living = [m.position for m in members if m.alive]
    if any(step in p.changed for p in living):
        return False
    begun = any(step in p.final for p in living)
    if begun and step in member.position.ends:
        return True
    if step not in member.position.provisional:
        return False
    return step == resumed or (begun and all(step not in p.drifted for p in living))


def whole(member, members, step):
    """Whether the stripes of `member`'s node hold its replica set's state at `step`."""
    return all(
        step in m.position.stripes
        for m in members
        if (m.node, m.replica_set) == (member.node, member.replica_set)
    )


def clean(member, step):
    return member.alive and member.position.clean == step


def held(of, members, step):
    """Whether the state of replica set `of` at the start of `step` exists."""
    return any(clean(m, step) or whole(m, members, step) for m in members if m.replica_set == of)


def possible(members, step, resumed=None):
    return all(
        knows(m, members, step, resumed) and held(m.replica_set, members, step) for m in members
    )


STEPS = range(6)

# -- any reports at all ----------------------------------------------------------------------------

steps = st.frozensets(st.sampled_from([3, 4, 5]), max_size=3)
mostly = st.one_of(st.just(frozenset({3, 4, 5})), st.just(frozenset({4, 5})), steps)


@st.composite
def jobs(draw, unknown=False):
    nodes = draw(st.integers(1, 3))
    sets = draw(st.sampled_from([1, 1, 1, 2]))
    members = []
    for rank in range(draw(st.integers(1, 6))):
        position = Position(
            step=draw(st.integers(3, 5)),
            clean=draw(st.sampled_from([None, None, 3, 4, 5])),
            final=draw(mostly),
            provisional=draw(steps),
            stripes=draw(mostly),
            drifted=draw(st.one_of(st.just(frozenset()), steps)),
            ends=draw(st.one_of(st.just(frozenset()), steps)),
            changed=draw(st.one_of(st.just(frozenset()), steps)),
            replica_set=rank // nodes % sets,
        )
        nothing = unknown and draw(st.integers(0, 3)) == 0
        members.append(
            Member(rank, rank % nodes, draw(st.booleans()), None if nothing else position)
        )
    return members


def compared(found, of):
    """A new process with a rank that has lived; without new ones, a rank that was given its state
    with one that was not."""
    new = {r for r, m in of.items() if not m.alive}
    for first, second in (
        (new, found.keep),
        ({*of} - {*found.keep}, found.keep),
        (new, {*of} - new),
    ):
        if first and second:
            return min(first), min(second)
    return ()


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
    assert found.compared == compared(found, of)
    have = {*found.keep, *found.stripes}
    given_by: dict[int, int] = {}
    for destination, source in found.copies:
        like = {r for r in have if of[r].replica_set == of[destination].replica_set}
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


def test_the_record_of_a_dead_rank_speaks_for_others():
    """The manager that had heard them is gone with its node."""
    one = Member(0, 0, False, at(6, None, {4, 5}, {6}))
    other = Member(1, 1, False, at(6, None, {4, 5, 6}, (), {5, 6}))
    assert step_of(plan([one, other])) == 5
    other = replace(other, position=other.position.but(promoted=frozenset({6})))
    assert step_of(plan([one, other])) == 6


def test_nobody():
    assert isinstance(plan([]), Refusal)


# -- the words -------------------------------------------------------------------------------------


def at(step, clean=None, final=(), provisional=(), stripes=(), of=0, doubted=False):
    sets = (frozenset(x) for x in (final, provisional, stripes))
    return Position(step, clean, *sets).but(replica_set=of, doubted=doubted)


def clean_5(rank, node=0, **more):
    return Member(rank, node, True, at(5, 5, {5}, **more))


def dead_5(rank, node=0, **more):
    return Member(rank, node, False, at(5, None, {5}, **more))


LAST = "step 5 is the last that every rank has recorded: "
NOBODY = "no rank's memory is unchanged and no node's stripes are complete"
REASONS = [
    (
        [
            Member(0, 0, True, at(5, 5, {4, 5})),
            Member(1, 0, False, at(5, None, {4, 5})),
            Member(2, 1, True, at(6, None, {5, 6})),
        ],
        f"{LAST}rank 2 ahead, taken back, rank 1 from rank 0; rank 2 from rank 0, rank 0 as they"
        " are",
    ),
    (
        [Member(r, 0, False, at(5, None, {4, 5}, (), {4} if r else {4, 5})) for r in (0, 1)],
        f"at step 5 no rank holds the state of the job: {NOBODY}; step 4 is the last before: ranks"
        " 0,1 ahead, taken back, ranks 0,1 from the node's stripes",
    ),
    (
        [clean_5(0), clean_5(1, 1, of=1), dead_5(2, 1), dead_5(3, of=1)],
        f"{LAST}rank 2 from rank 0; rank 3 from rank 1, ranks 0,1 as they are",
    ),
    (
        [clean_5(0), dead_5(1, of=1), clean_5(2), dead_5(3, of=1)],
        f"at step 5 no rank holds the state of ranks 1,3: {NOBODY}",
    ),
    (
        [*(clean_5(r, of=r % 2, doubted=True) for r in (0, 1, 2)), clean_5(3, of=1)],
        f"{LAST}rank 1 from rank 3, ranks 0,2,3 as they are",
    ),
    ([clean_5(0), Member(1, 0, False, None)], "rank 1 left no record of where it was"),
    ([Member(r, 0, False, None) for r in (0, 1)], "ranks 0,1 left no record of where they were"),
    (
        [clean_5(0), Member(1, 0, False, at(4, None))],
        "no step has the entry state of every rank (rank 0: [5], rank 1: none)",
    ),
]


@pytest.mark.parametrize(("members", "words"), REASONS)
def test_reason(members, words):
    assert plan(members).reason == words


def again(name, *arguments):
    """Print how to repeat it alone; of a test that fails pytest shows the last."""
    call = f"{name}({', '.join(map(repr, arguments))})"
    print(f"python -c 'from tests.core.test_repair import {name}; {call}'")


# ranks per node, nodes, replica sets
SETS = [((4, 1), 2), ((2, 2), 2), ((3, 2), 3), ((4, 2), 2)]


@pytest.mark.parametrize("block", range(4))
def test_killed_anywhere_the_ranks_train_on_as_if_nothing_had_been(block):
    for seed in range(block * 100, block * 100 + 100):
        killed_anywhere(seed)


def killed_anywhere(seed):
    again("killed_anywhere", seed)
    chance = random.Random(seed)
    drifting = {s for s in range(1, 300) if chance.random() < chance.choice([0, 0.3, 1])}
    shape, sets = chance.choice([*[((2, 1), 1), ((3, 1), 1), ((2, 2), 1), ((1, 3), 1)], *SETS])
    every, most = chance.choice([1, 1, 2, 3, 5]), chance.choice([FEW, SLOTS])
    length = chance.choice([0, 0, 1, 2, 5])
    passes = range(length, 1000, length) if length else ()
    world = started(*shape, drifting, every=every, sets=sets, most=most, passes=passes)
    if not life(world, chance, faults=8, steps=chance.choice([3, 30, 120])):
        living = {r.replica_set for r in world.ranks if r.alive}
        # two records are too few for a second fault behind the same pass
        twice = most == FEW and world.resumed in world.passes
        assert len(living) < sets or twice, "each replica set had a survivor, and still no plan"
    else:
        assert world.repairs == 8


def test_without_stripes_a_tail_that_was_cut_is_refused_and_never_guessed():
    for seed in range(60):
        without_stripes(seed)


def without_stripes(seed):
    again("without_stripes", seed)
    # the model asserts that no rank trains on a mixture
    life(started(3, 1, set(), striped=False), random.Random(seed), faults=8, steps=40)


@pytest.mark.parametrize("most", [FEW, SLOTS])
@pytest.mark.parametrize("every", [1, 2, 3])
@pytest.mark.parametrize("changed", [set(), {4}, {5}], ids=["no drift", "before", "after"])
@pytest.mark.parametrize("passes", [(), (4,), (5,)], ids=["one pass", "before", "after"])
def test_killed_at_every_stage(passes, changed, every, most):
    """Of two ranks rank 1 is killed at each stage of step 4, rank 0 being at each possible one."""
    for first in range(len(STAGES)):
        for second in range(len(STAGES)):
            killed_at(first, second, changed, every, most, passes)


def killed_at(first, second, changed, every, most, passes=()):
    again("killed_at", first, second, changed, every, most, passes)
    world = started(2, 1, changed, every=every, most=most, passes=passes)
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

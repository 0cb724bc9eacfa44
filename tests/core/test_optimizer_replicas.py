"""Repairs and checkpoints of a framework that copies its own state, against a plain reading of the
rule."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from taskd.core.incident import optimizer_replicas
from taskd.core.incident.optimizer_replicas import plan, replicas, savers
from taskd.core.incident.repair import Member, Refusal
from taskd.messages.values import Plan, Position, ReplicaGroup

# two model-parallel columns of data-parallel ranks, as Megatron numbers them
COLUMNS = {r: (ReplicaGroup((r % 2, r % 2 + 2), 2),) for r in range(4)}


def member(rank: int, step: int | None, clean: bool = True) -> Member:
    position = None if step is None else Position(step, step if clean else None)
    return Member(rank, 0, step is not None, position)


def test_a_dead_rank_takes_its_part_from_its_replica() -> None:
    found = plan([member(0, 7), member(1, None), member(2, 7), member(3, 7)], COLUMNS)
    assert isinstance(found, Plan)
    assert (found.step, [*found.keep], found.optimizers) == (7, [0, 2, 3], ((0, 1, 3),))


def test_the_groups_of_a_dead_rank_are_known_from_its_replica() -> None:
    told = {r: g for r, g in COLUMNS.items() if r != 1}
    found = plan([member(0, 7), member(1, None), member(2, 7), member(3, 7)], told)
    assert isinstance(found, Plan)
    assert found.optimizers == ((0, 1, 3),)


def test_a_rank_that_lost_its_update_is_brought_to_where_the_others_are() -> None:
    found = plan([member(0, 6, False), member(1, 7), member(2, 7), member(3, 7)], COLUMNS)
    assert isinstance(found, Plan)
    assert (found.step, found.optimizers) == (7, ((0, 0, 2),))


def test_without_a_replica_there_is_no_repair_and_it_is_said_which() -> None:
    found = plan([member(0, 7), member(1, None), member(2, 7), member(3, 7, False)], COLUMNS)
    assert isinstance(found, Refusal)
    assert "no replica has the state of optimizer 0 of rank 1: rank 3 is gone" in found.reason
    one = {0: (ReplicaGroup((0, 1), 1),), 1: (ReplicaGroup((0, 1), 1),)}
    found = plan([member(0, 7), member(1, None)], one)
    assert isinstance(found, Refusal)
    assert "it exists only once" in found.reason


def test_before_the_first_update_there_is_nothing_to_go_back_to() -> None:
    found = plan([member(0, 0), member(1, None)], {})
    assert isinstance(found, Refusal)
    assert found.reason == optimizer_replicas.NO_STEP


def test_each_part_of_a_checkpoint_is_saved_once() -> None:
    split = ReplicaGroup((0, 1, 2, 3), 2)  # parts on 0 and 2, and on 1 and 3
    told = dict.fromkeys(range(4), (split,))
    everybody = [member(r, 9) for r in range(4)]
    assert savers(everybody, told, range(4)) == (9, ((0, 1),))
    assert savers([member(0, None), *everybody[1:]], told, (1, 2, 3)) == (9, ((1, 2),))
    found = savers([member(0, None), member(1, 9), member(2, None), member(3, 9)], told, (1, 3))
    assert isinstance(found, Refusal)
    assert "no rank has a part of optimizer 0: rank 0, rank 2" in found.reason


def test_two_kinds_of_optimizers() -> None:
    dense, expert = ReplicaGroup((0, 1, 2, 3), 4), ReplicaGroup((0, 2), 2)
    told = {0: (dense, expert), 2: (dense, expert), 1: (dense,), 3: (dense,)}
    members = [member(r, 3 if r else None) for r in range(4)]
    found = plan(members, told)
    assert isinstance(found, Plan)
    assert found.optimizers == ((0, 0, 1), (1, 0, 2))
    assert savers(members, told, (1, 2, 3)) == (3, ((1,), (2,)))


@given(
    count=st.integers(1, 4),
    apart=st.integers(1, 4),
    dead=st.sets(st.integers(0, 15)),
    dirty=st.sets(st.integers(0, 15)),
    offset=st.integers(0, 5),
)
def test_against_the_rule(
    count: int, apart: int, dead: set[int], dirty: set[int], offset: int
) -> None:
    """Ranks i and i + k * `apart` of a row hold the same; a rank that is not clean needs one that
    is."""
    world = count * apart
    row = ReplicaGroup(tuple(range(world)), count)
    told = dict.fromkeys(range(world), (row,))
    members = [
        member(r, None if r in dead else 5 + offset * (r not in dirty), r not in dirty)
        for r in range(world)
    ]
    same = {r: {s for s in range(world) if s % apart == r % apart} - {r} for r in range(world)}
    assert all(set(replicas(r, row)) == same[r] for r in range(world))
    clean = {r for r in range(world) if r not in dead and r not in dirty}
    step = max((m.position.step for m in members if m.position is not None), default=0)
    if not any(m.position is not None for m in members):
        assert isinstance(plan(members, told), Refusal)
        return
    found = plan(members, told)
    lacking = [r for r in range(world) if r not in clean]
    if any(not same[r] & clean for r in lacking):
        assert isinstance(found, Refusal)
    else:
        assert isinstance(found, Plan)
        assert found.step == step
        assert set(found.keep) == clean
        assert [d for _, d, _ in found.optimizers] == lacking
        assert all(s in clean & same[d] for _, d, s in found.optimizers)
    saved = savers(members, told, clean)
    parts = {p: clean & ({p} | same[p]) for p in range(apart)}
    if all(parts.values()):
        assert not isinstance(saved, Refusal)
        assert saved == (step, (tuple(sorted({min(holders) for holders in parts.values()})),))
    else:
        assert isinstance(saved, Refusal)

"""What a framework tells of its replicas: accepted as meant, or refused with what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskd.adaptor.mindio.replica_info import data_parallel, groups
from taskd.messages import codec, from_rank
from taskd.messages.codec import Decoder
from taskd.messages.values import ReplicaGroup

RECEIVER: Decoder[Any] = Decoder("from a rank to its agent", from_rank.OptimizerReplicas)


@st.composite
def told(draw: st.DrawFn) -> tuple[int, list[dict[str, Any]]]:
    """A rank, and what a framework may tell of it."""
    me = draw(st.integers(0, 99_999))
    info = []
    for _ in range(draw(st.integers(1, 3))):
        others = draw(st.sets(st.integers(0, 99_999), max_size=12)) - {me}
        ranks = draw(st.permutations([me, *sorted(others)]))
        counts = [n for n in range(1, len(ranks) + 1) if len(ranks) % n == 0]
        entry = {"rank_list": ranks, "replica_cnt": draw(st.sampled_from(counts))}
        entry |= draw(st.sampled_from([{}, {"replica_shift": 0}, {"type": 1, "replica_shift": -1}]))
        info.append(entry)
    return me, info


@settings(deadline=None)
@given(told())
def test_what_is_right_is_accepted_in_its_order(case: tuple[int, list[dict[str, Any]]]) -> None:
    """The order of the ranks says which of them hold the same part."""
    me, info = case
    found = groups(me, info)
    assert found == tuple(ReplicaGroup(tuple(e["rank_list"]), e["replica_cnt"]) for e in info)
    message = from_rank.OptimizerReplicas(me, 0, found)
    assert RECEIVER.decode(codec.encode(message)) == message, "the agent takes it"


# how one entry is made wrong: what it becomes, and what is wrong with it
WRONG: dict[str, tuple[Callable[[int, list[int]], Any], str]] = {
    "no dict": (lambda me, ranks: ranks, "give a dict"),
    "nothing": (lambda me, ranks: {}, "rank_list"),
    "no ranks": (lambda me, ranks: {"replica_cnt": 1}, "rank_list"),
    "without me": (
        lambda me, ranks: {"rank_list": [r for r in ranks if r != me], "replica_cnt": 1},
        "rank_list",
    ),
    "twice": (lambda me, ranks: {"rank_list": [*ranks, me], "replica_cnt": 1}, "rank_list"),
    "negative": (lambda me, ranks: {"rank_list": [*ranks, -1], "replica_cnt": 1}, "rank_list"),
    "too high": (
        lambda me, ranks: {"rank_list": [*ranks, 100_000], "replica_cnt": 1},
        "rank_list",
    ),
    "a text": (lambda me, ranks: {"rank_list": [*ranks, "1"], "replica_cnt": 1}, "rank_list"),
    "a list": (lambda me, ranks: {"rank_list": [*ranks, []], "replica_cnt": 1}, "rank_list"),
    "a set": (lambda me, ranks: {"rank_list": set(ranks), "replica_cnt": 1}, "rank_list"),
    "no count": (lambda me, ranks: {"rank_list": ranks}, "replica_cnt"),
    "none": (lambda me, ranks: {"rank_list": ranks, "replica_cnt": 0}, "replica_cnt"),
    "yes": (lambda me, ranks: {"rank_list": ranks, "replica_cnt": True}, "replica_cnt"),
    "a fraction": (lambda me, ranks: {"rank_list": ranks, "replica_cnt": 1.0}, "replica_cnt"),
    "more than ranks": (
        lambda me, ranks: {"rank_list": ranks, "replica_cnt": len(ranks) * 2},
        "replica_cnt",
    ),
    "less than none": (lambda me, ranks: {"rank_list": ranks, "replica_cnt": -1}, "replica_cnt"),
}


@settings(deadline=None)
@given(told(), st.sampled_from(sorted(WRONG)), st.data())
def test_one_wrong_entry_is_refused_and_named(
    case: tuple[int, list[dict[str, Any]]], name: str, data: st.DataObject
) -> None:
    me, info = case
    kind = data.draw(st.integers(0, len(info) - 1))
    become, what = WRONG[name]
    info[kind] = become(me, list(info[kind]["rank_list"]))
    with pytest.raises(ValueError, match=what) as error:
        groups(me, info)
    assert f"replica_info[{kind}]" in str(error.value)


@pytest.mark.parametrize(("ranks", "count"), [(4, 3), (3, 2), (6, 4), (5, 6)])
def test_each_part_exists_equally_often(ranks: int, count: int) -> None:
    with pytest.raises(ValueError, match=f"must divide the {ranks} ranks"):
        groups(0, [{"rank_list": list(range(ranks)), "replica_cnt": count}])


@pytest.mark.parametrize("info", [None, [], (), {}, "ranks", 3, {"rank_list": [0]}])
def test_what_is_no_list_of_entries(info: Any) -> None:
    with pytest.raises(ValueError, match="give a list of 1 to 1000 dicts"):
        groups(0, info)


def test_the_most_kinds_of_optimizers() -> None:
    entry = {"rank_list": [0], "replica_cnt": 1}
    assert len(groups(0, [entry] * 1000)) == 1000
    with pytest.raises(ValueError, match="give a list of 1 to 1000 dicts"):
        groups(0, [entry] * 1001)


def test_a_tuple_of_ranks_is_a_list_of_ranks() -> None:
    assert groups(2, [{"rank_list": (2, 0), "replica_cnt": 2}]) == (ReplicaGroup((2, 0), 2),)


anything: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 5) | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["rank_list", "replica_cnt"]), inner)
    ),
    max_leaves=12,
)


@settings(deadline=None)
@given(anything | st.lists(anything, max_size=3))
def test_anything_is_accepted_or_refused(info: Any) -> None:
    """And never another exception, which would end the training."""
    try:
        found = groups(0, info)
    except ValueError as error:
        assert str(error).startswith("tft_set_optimizer_replica: replica_info")
        return
    assert len(found) == len(info)
    assert all(0 in g.ranks and len(g.ranks) % g.count == 0 for g in found)


def test_a_data_parallel_group_is_given_in_any_order() -> None:
    assert data_parallel(2, (6, 2, 4)) == (2, 4, 6)


@pytest.mark.parametrize("ranks", [None, [], [0, 4], [2, 2], [2, -1], [2, 3.0], "2", {2}])
def test_one_that_is_wrong_is_refused_and_named(ranks: Any) -> None:
    with pytest.raises(ValueError, match="tft_set_dp_group_info: dp_rank_list is"):
        data_parallel(2, ranks)

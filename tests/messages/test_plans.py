"""The ranks of a plan, which goes to every agent."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from taskd.messages import codec, to_rank
from taskd.messages.values import Plan, RankSet

ranks = st.sets(st.integers(0, 60))


@given(ranks)
def test_a_set_of_ranks_is_that_set(some):
    found = RankSet.of(some)
    assert [*found] == sorted(some) and bool(found) == bool(some)
    assert {r for r in range(70) if r in found} == some
    order = to_rank.Restore(1, 1, Plan(5, found, RankSet(), (), ""))
    assert codec.TO_AGENT.decode(codec.encode(order)) == order


def test_a_plan_does_not_grow_with_the_job():
    """But for one rank that was lost, all go on as they are."""

    def size(nodes):
        keep = RankSet.of(set(range(nodes)) - {7})
        return len(codec.encode(to_rank.Restore(1, 1, Plan(5, keep, RankSet(), ((7, 8),), ""))))

    assert size(100_000) < size(100) + 10

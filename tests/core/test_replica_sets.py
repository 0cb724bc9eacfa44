"""Which ranks are replicas of each other."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from taskd.core.replica_sets import Holding, equal, find, hold, outliers, same_node

NODES = st.integers(0, 2)
holdings = st.lists(
    st.builds(Holding, NODES, st.integers(0, 1), st.integers(0, 2)), min_size=1, max_size=9
)


@given(holdings)
def test_replicas_have_the_same(ranks):
    found = find(ranks)
    same = [[o for o in ranks if (o.layout, o.content) == (r.layout, r.content)] for r in ranks]
    one = len({r.node for r in ranks}) == 1
    safe = all(
        len(replicas) > 1 and (one or len({o.node for o in replicas}) > 1) for replicas in same
    )
    assert (found is not None) == safe
    if found is not None:
        for rank, of in enumerate(found):
            members = [r for r, other in enumerate(found) if other == of]
            assert of == min(members)
            assert [ranks[r] in same[rank] for r in members] == [True] * len(members)
            assert len(members) == len(same[rank])


@given(holdings)
def test_what_was_found_holds_until_a_rank_changes(ranks):
    found = find(ranks)
    if found is None:
        return
    now = [Holding(r.node, r.layout, r.content, of) for r, of in zip(ranks, found, strict=True)]
    assert hold(now)
    now[-1] = Holding(now[-1].node, now[-1].layout, 7, now[-1].present)
    assert not hold(now)


def test_the_job_is_one_set_at_first():
    assert hold([Holding(0, 1, 1)] * 3)
    assert not hold([Holding(0, 1, 1), Holding(0, 1, 2)])
    assert find([Holding(n, 1, 1) for n in (0, 0, 1, 1)]) == [0, 0, 0, 0]


def test_hsdp_on_one_node_and_on_two():
    ranks = [Holding(0, 1, content) for content in (5, 6, 5, 6)]
    assert find(ranks) == [0, 1, 0, 1]
    assert find([Holding(n, 1, c) for n, c in ((0, 5), (0, 6), (1, 5), (1, 6))]) == [0, 1, 0, 1]
    # a replica on the same node is lost with it
    assert find([Holding(n, 1, c) for n, c in ((0, 5), (0, 5), (1, 6), (1, 6))]) is None


def test_replicas_of_a_node():
    sets, nodes = [0, 1, 0, 1, 0, 1], [0, 0, 0, 1, 1, 1]
    assert [same_node(r, sets, nodes) for r in range(6)] == [
        [0, 2],
        [1],
        [0, 2],
        [3, 5],
        [4],
        [3, 5],
    ]


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from("ab")), min_size=1, max_size=9))
def test_outliers(ranks):
    sets = {r: of for r, (of, _) in enumerate(ranks)}
    digests = {r: digest for r, (_, digest) in enumerate(ranks)}
    found = outliers(digests, sets)
    assert equal(digests, sets) == (found == set())
    for of in set(sets.values()):
        mine = [digests[r] for r in sets if sets[r] == of]
        most = [d for d in "ab" if 2 * mine.count(d) > len(mine)]
        if not most:
            assert found is None
        elif found is not None:
            assert {r for r in found if sets[r] == of} == {
                r for r in sets if sets[r] == of and digests[r] != most[0]
            }

"""Which ranks are replicas of each other."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from taskd.core.job.replica_sets import Holding, equal, find, hold, outliers, same_node

NODES = st.integers(0, 2)
holdings = st.lists(
    st.builds(Holding, NODES, st.integers(0, 1), st.integers(0, 2)), min_size=1, max_size=9
)


def by_rank(ranks):
    return dict(enumerate(ranks))


@given(holdings)
def test_replicas_have_the_same(ranks):
    found = find(by_rank(ranks))
    same = [[o for o in ranks if (o.layout, o.content) == (r.layout, r.content)] for r in ranks]
    one = len({r.node for r in ranks}) == 1
    safe = all(
        len(replicas) > 1 and (one or len({o.node for o in replicas}) > 1) for replicas in same
    )
    assert (found is not None) == safe
    if found is not None:
        assert list(found) == list(range(len(ranks)))
        for rank, of in found.items():
            members = [r for r, other in found.items() if other == of]
            assert of == min(members)
            assert [ranks[r] in same[rank] for r in members] == [True] * len(members)
            assert len(members) == len(same[rank])


@given(holdings)
def test_what_was_found_holds_until_a_rank_changes(ranks):
    found = find(by_rank(ranks))
    if found is None:
        return
    now = {r: Holding(h.node, h.layout, h.content, found[r]) for r, h in enumerate(ranks)}
    assert hold(now)
    last = max(now)
    now[last] = Holding(now[last].node, now[last].layout, 7, now[last].present)
    assert not hold(now)


@given(holdings, st.sets(st.integers(0, 8)))
def test_a_set_holds_without_the_rank_that_it_is_named_by(ranks, away):
    found = find(by_rank(ranks))
    if found is None:
        return
    now = {r: Holding(h.node, h.layout, h.content, found[r]) for r, h in enumerate(ranks)}
    here = {r: h for r, h in now.items() if r not in away}
    assert hold(here)
    for rank, of in [(r, of) for r, of in found.items() if r in here]:
        changed = {**here, rank: Holding(here[rank].node, here[rank].layout, 7, of)}
        assert hold(changed) == (sum(h.present == of for h in here.values()) == 1)


def test_the_job_is_one_set_at_first():
    assert hold(by_rank([Holding(0, 1, 1)] * 3))
    assert not hold(by_rank([Holding(0, 1, 1), Holding(0, 1, 2)]))
    found = find(by_rank([Holding(n, 1, 1) for n in (0, 0, 1, 1)]))
    assert found == by_rank([0, 0, 0, 0])


def test_hsdp_on_one_node_and_on_two():
    def sets(*ranks):
        return find(by_rank([Holding(node, 1, content) for node, content in ranks]))

    assert sets((0, 5), (0, 6), (0, 5), (0, 6)) == by_rank([0, 1, 0, 1])
    assert sets((0, 5), (0, 6), (1, 5), (1, 6)) == by_rank([0, 1, 0, 1])
    # a replica on the same node is lost with it
    assert sets((0, 5), (0, 5), (1, 6), (1, 6)) is None


def test_replicas_of_a_node():
    sets, nodes = by_rank([0, 1, 0, 1, 0, 1]), by_rank([0, 0, 0, 1, 1, 1])
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

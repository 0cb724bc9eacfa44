"""Counts of collectives that nodes have said with their heartbeats."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from taskd.core.evenness import Evenness
from taskd.messages.node_progress import NodeProgress
from tests.lab.troubleshooting import told


@dataclass
class Rank:
    incarnation: int


RANKS = {number: Rank(number % 3) for number in range(8)}


def said(step, *counts, built=0):
    return NodeProgress((step,), b"\1", (0,), counted=(built, step), counts=counts)


def test_a_difference_is_told_of_the_rank_that_has_begun_fewer():
    for first, second in (((7, 20, 1), (7, 18, 5)), ((7, 18, 5), (7, 20, 1))):
        even = Evenness()
        assert even.heard(said(64, 3, 4, 1, *first), RANKS) is None
        found = even.heard(said(64, *second), RANKS)
        assert found is not None and found.refused
        assert (found.rank, found.incarnation, found.step) == (5, 2, 64)
        assert told(found.text, "it has begun fewer collectives than rank N")
        assert "(2 less)" in found.text


def test_only_the_same_step_of_the_same_groups_is_compared():
    even = Evenness()
    assert even.heard(said(64, 7, 20, 1), RANKS) is None
    assert even.heard(said(128, 7, 40, 5), RANKS) is None
    assert even.heard(said(64, 7, 19, 5), RANKS) is None  # late
    assert even.heard(said(128, 8, 39, 1), RANKS) is None  # another group
    assert even.heard(said(64, 7, 0, 5, built=1), RANKS) is None  # after a repair
    assert even.heard(said(128, 7, 41, 1), RANKS) is None  # late: before it
    assert even.heard(said(64, 7, 1, 1, built=1), RANKS) is not None


def test_ranks_that_are_away_are_not_compared():
    even = Evenness()
    assert even.heard(said(64, 7, 20, 9), RANKS) is None
    assert even.heard(said(64, 7, 19, 5), RANKS) is None


def test_a_heartbeat_that_is_cut_off_says_nothing():
    assert Evenness().heard(said(64, 7, 20), RANKS) is None


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 7)), min_size=1, max_size=40),
    st.integers(0, 5),
)
def test_equal_ranks_are_never_refused_and_a_rank_that_lags_is(beats, group):
    """Each beat: the step that a rank has chosen last. All have begun three a step."""
    even, uneven = Evenness(), Evenness()
    together = {}
    for step, rank in beats:
        assert even.heard(said(step, group, 3 * step, rank), RANKS) is None
        behind = rank == 0
        found = uneven.heard(said(step, group, 3 * step - behind + 1, rank), RANKS)
        together.setdefault(step, set()).add(behind)
        if found is not None:
            assert found.rank == 0 and together[step] == {True, False}
            return
    newest = max(step for step, _ in beats)
    last = [rank == 0 for step, rank in beats if step == newest]
    assert len(set(last)) == 1

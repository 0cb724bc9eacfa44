"""Counts of collectives that nodes have said with their heartbeats."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from taskd.core.hang.evenness import Evenness
from taskd.messages.node_progress import NodeProgress
from tests.lab.troubleshooting import told


@dataclass
class Rank:
    incarnation: int


RANKS = {number: Rank(number % 3) for number in range(8)}


def said(step, *counts, generation=1):
    return NodeProgress((step,), b"\1", (0,), counted=(generation, step), counts=counts)


class Even(Evenness):
    """Each heartbeat is of the rank's own node."""

    def heard(self, progress, ranks):
        return super().heard(progress.counts[-1], progress, ranks)


def test_a_difference_is_told_of_the_rank_that_has_begun_fewer():
    for first, second in (((7, 20, 1), (7, 18, 5)), ((7, 18, 5), (7, 20, 1))):
        even = Even()
        assert even.heard(said(64, 3, 4, 1, *first), RANKS) is None
        found = even.heard(said(64, *second), RANKS)
        assert found is not None and found.refused
        assert (found.rank, found.incarnation, found.step) == (5, 2, 64)
        assert told(found.text, "it has begun fewer collectives than rank N")
        assert "(2 fewer)" in found.text


def test_only_the_same_step_of_the_same_groups_is_compared():
    even = Even()
    assert even.heard(said(64, 7, 20, 1), RANKS) is None
    assert even.heard(said(128, 7, 40, 5), RANKS) is None
    assert even.heard(said(192, 8, 39, 1), RANKS) is None  # another group
    assert even.heard(said(64, 7, 0, 5), RANKS) is None  # late: there are two newer ones
    assert even.heard(said(128, 7, 41, 1), RANKS) is not None


def test_counts_of_former_generations_do_not_count():
    """All ranks may have been started again since, and count from 0."""
    even = Even()
    assert even.heard(said(64, 7, 20, 1), RANKS) is None
    assert even.heard(said(64, 7, 3, 5, generation=2), RANKS) is None
    assert even.heard(said(64, 7, 21, 6), RANKS) is not None  # still the former one
    assert even.heard(said(64, 7, 3, 1, generation=2), RANKS) is None
    assert even.heard(said(64, 7, 2, 2, generation=2), RANKS) is not None


def test_what_is_kept_is_bounded():
    even = Even()
    for step in range(0, 6400, 64):
        for rank in range(8):
            assert even.heard(said(step, step, 3, rank), RANKS) is None
    assert len(even._steps) == 2 and len(even._said) == 8


def test_ranks_that_are_away_are_not_compared():
    even = Even()
    assert even.heard(said(64, 7, 20, 9), RANKS) is None
    assert even.heard(said(64, 7, 19, 5), RANKS) is None


def test_a_heartbeat_that_is_cut_off_says_nothing():
    assert Even().heard(said(64, 7, 20), RANKS) is None


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 7)), min_size=1, max_size=40),
    st.integers(0, 5),
)
def test_equal_ranks_are_never_refused_and_only_a_rank_that_lags_is(beats, group):
    """Each beat: the step that a rank's node has chosen last, and the rank. All have begun three
    collectives a step; in `uneven` rank 0 one less."""
    even, uneven = Even(), Even()
    for step, rank in beats:
        assert even.heard(said(step, group, 3 * step + 9, rank), RANKS) is None
        found = uneven.heard(said(step, group, 3 * step + 9 - (rank == 0), rank), RANKS)
        assert found is None or found.rank == 0


@given(st.lists(st.integers(0, 7), min_size=8, max_size=20, unique=False))
def test_a_difference_in_the_newest_step_is_always_found(order):
    uneven = Even()
    found = [uneven.heard(said(64, 7, 30 - (rank == 0), rank), RANKS) for rank in order]
    assert any(found) == (0 in order and len(set(order)) > 1)

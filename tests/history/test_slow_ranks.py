"""A slow rank is told once for each episode."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from taskd.history.notices.slow_ranks import BEGINS, ENDS, SlowRanks


def told(looks):
    slow = SlowRanks()
    return [slow.advance(look) for look in looks]


def test_once_it_has_been_slow_for_some_looks_and_then_no_more():
    assert told([(3,)] * 50) == [()] * (BEGINS - 1) + [(3,)] + [()] * (50 - BEGINS)


def test_a_rank_that_is_slow_now_and_then_is_never_told():
    assert not any(told([(3,), (3,), ()] * 20))


def test_a_short_pause_does_not_begin_another_episode_and_a_long_one_does():
    short = [(3,)] * BEGINS + [()] * (ENDS - 1) + [(3,)] * 20
    assert sum(map(len, told(short))) == 1
    long = [(3,)] * BEGINS + [()] * ENDS + [(3,)] * 20
    assert sum(map(len, told(long))) == 2


@given(st.lists(st.sets(st.integers(0, 100), max_size=10), max_size=100))
def test_memory_is_bounded(looks):
    slow = SlowRanks()
    for look in looks:
        slow.advance(look)
        assert len(slow._seen) <= 10 * (ENDS + 1)

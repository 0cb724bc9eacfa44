"""The offset of another clock: the truth is within the bound, whatever delays and drift do."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskd.manager.clocks import DRIFT, FEW, OFTEN, PATIENCE, SELDOM, Clock

DELAYS = st.floats(0.0, 2.0)


@st.composite
def exchanges(draw):
    """Questions and answers over slow ways, to an agent whose clock drifts."""
    ahead, drift = draw(st.floats(-1e6, 1e6)), draw(st.floats(-DRIFT, DRIFT))
    now, out = draw(st.floats(1.0, 1e5)), []
    for _ in range(draw(st.integers(1, 8))):
        now += draw(st.floats(0.0, 300.0))
        asked, read = now, now + draw(DELAYS)
        now = read + draw(DELAYS)
        out.append((asked, read, now))
    return ahead, drift, out


@settings(max_examples=300, deadline=None)
@given(exchanges(), st.floats(0.0, 1000.0))
def test_the_bound_holds(made, later):
    ahead, drift, talk = made
    first = talk[0][0]

    def theirs(moment):
        return moment + ahead + drift * (moment - first)

    clock = Clock()
    for asked, read, told in talk:
        clock.ask(asked)
        clock.answered(asked, theirs(read), told)
        for moment in (told, told + later):
            now = moment + 1.0
            found, bound = theirs(now) - clock.offset.seconds, clock.bound(now)
            assert abs(found - now) <= bound + 1e-6


def test_a_better_answer_replaces_a_worse_one_and_not_the_other_way():
    clock = Clock()
    clock.ask(100.0)
    assert clock.answered(100.0, 600.5, 101.0)
    assert clock.offset.seconds == 500.0 and clock.offset.bound == pytest.approx(0.501)
    clock.ask(110.0)
    assert clock.answered(110.0, 610.001, 110.002)
    assert clock.offset.bound == pytest.approx(0.001, abs=1e-5)
    clock.ask(111.0)
    assert not clock.answered(111.0, 612.0, 112.0)
    assert clock.ours(610.0, 200.0) == pytest.approx(110.0, abs=0.002)


def test_an_old_answer_counts_again_once_the_clocks_may_have_drifted_further():
    clock = Clock()
    clock.ask(100.0)
    clock.answered(100.0, 100.0, 100.002)
    later = 100.0 + 0.5 / DRIFT
    clock.ask(later)
    assert clock.answered(later, later + 0.2, later + 0.4)


@pytest.mark.parametrize(
    ("asked", "now"), [(0.0, 101.0), (99.0, 101.0), (100.0, 99.9), (100.0, 100.1 + PATIENCE)]
)
def test_an_answer_to_no_question_says_nothing(asked, now):
    clock = Clock()
    clock.ask(100.0)
    assert not clock.answered(asked, 1.0, now)
    assert clock.offset is None and clock.ours(5.0, 7.0) == 7.0 and clock.bound(7.0) is None


def test_an_answer_counts_once():
    clock = Clock()
    clock.ask(100.0)
    assert clock.answered(100.0, 50.0, 100.1) and not clock.answered(100.0, 70.0, 100.2)


def test_what_an_agent_says_cannot_be_later_than_now():
    clock = Clock()
    clock.ask(100.0)
    clock.answered(100.0, 50.0, 100.1)
    assert clock.ours(1e9, 101.0) == 101.0
    assert clock.ours(0.0, 101.0) == 101.0  # it did not say


def test_questions_are_few():
    clock, now, asked = Clock(), 0.0, 0
    while now < 600.0:
        now += 3.0
        if clock.due(now):
            clock.ask(now)
            clock.answered(now, now, now + 0.001)
            asked += 1
    assert asked <= FEW + 600 / SELDOM + 1 and OFTEN <= 3.0

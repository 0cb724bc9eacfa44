"""How often the whole state is recorded, and how far back a step may be repeated."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from taskd.worker.training.pace import LARGE, MOST, Pace


def test_every_third_step():
    pace = Pace(3)
    seen = []
    for step in range(8):
        oldest = pace.oldest(step)
        if pace.due(step):
            pace.recorded(step)
        seen.append((step, pace.due(step), oldest))
    assert seen == [
        *[(0, True, 0), (1, False, 0), (2, False, 0)],
        *[(3, True, 0), (4, False, 0), (5, False, 0)],
        *[(6, True, 3), (7, False, 3)],
    ]


def test_an_attempt_that_is_repeated_is_recorded_again():
    pace = Pace(3)
    pace.recorded(0)
    assert pace.due(0) and not pace.due(1)
    pace.recorded(0)
    assert not pace.due(1) and pace.due(3)


def test_after_going_back():
    pace = Pace(2)
    for step in (0, 2, 4):
        pace.recorded(step)
    pace.go_back(2, 2)
    assert pace.due(2) and pace.oldest(2) == 2
    pace.recorded(2)
    assert not pace.due(3) and pace.due(4) and pace.oldest(4) == 2


def test_a_pass_begins_with_a_record():
    pace = Pace(10)
    pace.recorded(0)
    pace.begin_pass(7)
    assert pace.due(7)


@given(
    every=st.integers(1, 5), moves=st.lists(st.sampled_from(["step", "pass", "back"]), max_size=40)
)
def test_what_may_be_repeated_is_among_the_two_newest_records(every, moves):
    pace, step, records = Pace(every), 0, []
    for move in moves:
        if move == "back" and records:
            step = records[max(len(records) - 2, 0)]
            records = [r for r in records if r <= step]
            pace.go_back(step, every)
        elif move == "pass":
            pace.begin_pass(step)
        assert pace.oldest(step) in {step, *records[-2:]}
        if pace.due(step):
            pace.recorded(step)
            records = [*(r for r in records if r != step), step]
        assert step - records[-1] < every
        step += 1


@given(cost=st.floats(0, 10), span=st.floats(0.001, 10))
def test_recording_takes_at_most_one_percent(cost, span):
    pace = Pace()
    pace.measured(cost, span + cost)
    every = pace.wanted(LARGE)
    assert 1 <= every <= MOST
    assert every == MOST or cost / every <= 0.01 * span * 1.001
    assert every == 1 or cost / (every - 1) >= 0.01 * span * 0.999


def test_small_state_is_recorded_at_every_step():
    pace = Pace()
    pace.measured(1.0, 2.0)
    assert pace.wanted(LARGE - 1) == 1 and pace.wanted(LARGE) == MOST
    fixed = Pace(4)
    fixed.measured(1.0, 2.0)
    assert fixed.wanted(LARGE) == 4

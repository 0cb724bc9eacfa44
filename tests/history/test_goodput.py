"""What the time of a job went to."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from taskd.history.goodput import KINDS, Spent
from taskd.history.model import Job
from taskd.history.reading import Record
from taskd.history.report import account
from taskd.history.report.figures import Assumptions


def after(*entries: tuple[float, str, dict], until: float) -> Spent:
    job = Job(most=1)
    for time, kind, data in entries:
        job.add(Record(kind, time, data))
    job.until(until)
    return job.spent


START = (0.0, "start", {"successor": False})
LOOP = (10.0, "protected", {})


def seconds(spent: Spent) -> dict[str, float]:
    return {kind: s for kind, s in spent.seconds.items() if s}


def test_an_undisturbed_job():
    spent = after(START, LOOP, (90.0, "end", {}), until=500.0)
    assert seconds(spent) == {"starting": 10.0, "training": 80.0}
    # the time of the start is no loss, as in `taskd report`
    assert spent.goodput == 1.0


def test_an_incident_counts_from_the_fault_and_its_lost_steps_count_as_repeated():
    spent = after(
        START,
        LOOP,
        (20.0, "progress", {"step": 5, "usual": 2.0}),
        (31.0, "fault", {"incident": 1, "began": 30.0}),
        (32.0, "fault", {"incident": 1, "began": 30.0}),
        (36.0, "incident", {"incident": 1, "step": 7, "reached": 10}),
        until=100.0,
    )
    assert seconds(spent) == {"starting": 10.0, "incident": 6.0, "repeated": 6.0, "training": 78.0}


def test_a_pause_and_an_incident_within_it():
    spent = after(
        START,
        LOOP,
        (20.0, "pause", {"step": 4, "moving": False}),
        (30.0, "fault", {"incident": 1, "began": 30.0}),
        (35.0, "incident", {"incident": 1, "step": 4, "reached": 4}),
        (40.0, "continue", {}),
        until=50.0,
    )
    assert seconds(spent) == {"starting": 10.0, "paused": 15.0, "incident": 5.0, "training": 20.0}


def test_a_restart_is_starting_and_then_repeated_up_to_the_step_of_before():
    spent = after(
        START,
        LOOP,
        (50.0, "progress", {"step": 40, "usual": 1.0}),
        (60.0, "fault", {"incident": 1, "began": 60.0}),
        (61.0, "incident", {"incident": 1, "step": -1, "reached": 50, "result": "restarted"}),
        (61.0, "restart", {}),
        (71.0, "protected", {}),
        (81.0, "progress", {"step": 10, "usual": 1.0}),
        (111.0, "progress", {"step": 40, "usual": 1.0}),
        until=131.0,
    )
    assert seconds(spent) == {
        "starting": 20.0,
        "training": 70.0,
        "incident": 1.0,
        "repeated": 40.0,
    }


def test_the_next_manager_goes_on_and_one_that_knows_nothing_before_begins_in_training():
    taken_over = (40.0, "start", {"successor": True})
    assert seconds(after(START, LOOP, taken_over, until=50.0)) == {
        "starting": 10.0,
        "training": 40.0,
    }
    assert seconds(after(taken_over, until=50.0)) == {"training": 10.0}
    repeated = (40.0, "start", {"successor": False, "repeated": True})
    assert seconds(after(START, LOOP, repeated, until=50.0)) == {"starting": 10.0, "training": 40.0}
    again = (40.0, "start", {"successor": False})
    assert seconds(after(START, LOOP, again, until=50.0)) == {"starting": 10.0}


def elastic(time: float, ranks: int, shares: int) -> tuple[float, str, dict]:
    return time, "elastic", {"ranks": ranks, "of": 8, "shares": shares, "away": []}


def test_while_ranks_are_away_a_step_takes_longer():
    spent = after(
        START,
        LOOP,
        elastic(20.0, 6, 2),
        elastic(30.0, 4, 4),
        # an incident, a pause and repetition are what they are in a full job
        (50.0, "progress", {"step": 5, "usual": 2.0}),
        (50.0, "fault", {"incident": 1, "began": 50.0}),
        (55.0, "incident", {"incident": 1, "step": 5, "reached": 7}),  # 4 s
        (79.0, "pause", {"step": 9}),
        (89.0, "continue", {}),
        elastic(99.0, 8, 1),
        until=109.0,
    )
    assert seconds(spent) == {
        "starting": 10.0,
        "incident": 5.0,
        "paused": 10.0,
        "repeated": 4.0,
        "shrunk": 5.0 + 15.0 + 15.0 + 7.5,
        "training": 10.0 + 5.0 + 5.0 + 5.0 + 2.5 + 10.0,
    }
    assert spent.goodput == 37.5 / 99.0


def test_a_fault_that_is_older_than_its_entry_while_ranks_are_away():
    late = (40.0, "fault", {"incident": 1, "began": 36.0})
    spent = after(START, LOOP, elastic(20.0, 4, 4), late, until=50.0)
    assert seconds(spent) == {"starting": 10.0, "incident": 14.0, "shrunk": 12.0, "training": 14.0}


@pytest.mark.parametrize("kind", ["restart", "end", "start"])
def test_all_ranks_train_again_after(kind):
    spent = after(START, LOOP, elastic(20.0, 4, 2), (30.0, kind, {}), until=30.0)
    assert spent.shares == 1 and spent.seconds["shrunk"] == (0.0 if kind == "start" else 5.0)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(1.0, 30.0), st.sampled_from(["shrink", "grow", "pause", "repair"])),
        max_size=8,
    )
)
def test_the_report_says_the_same(changes):
    """The manager counts as it goes; the report has the journal as a whole."""
    entries, now, number = [START, LOOP], 20.0, 0
    for seconds_, what in changes:
        now += seconds_
        if what == "pause":
            entries += [(now, "pause", {"step": 5}), (now + 3.0, "continue", {})]
        elif what == "repair":
            number += 1
            over = {"incident": number, "began": now, "seconds": 3.0, "result": "repaired"}
            fault = (now, "fault", {"incident": number, "began": now})
            entries += [fault, (now + 3.0, "incident", {**over, "step": 5, "reached": 5})]
        else:
            entries.append(elastic(now, 8, 1) if what == "grow" else elastic(now, 5, 3))
        now += 4.0
    entries.append((now, "end", {"ok": True}))
    spent = after(*entries, until=now)
    job = account.read(Record(kind, time, data) for time, kind, data in entries)
    assert job is not None
    told = account.of_job(job, account.assumptions(job, None, False, None))
    assert told.goodput == pytest.approx(spent.goodput)
    assert told.shrunk_seconds == pytest.approx(spent.seconds["shrunk"])
    assert told.lost_seconds == pytest.approx(spent.seconds["incident"])
    assert told.paused_seconds == pytest.approx(spent.seconds["paused"])


KNOWN = st.sampled_from(
    [
        "start", "protected", "fault", "incident", "restart", "pause", "continue", "progress",
        "elastic", "end",
    ]
)  # fmt: skip
VALUES = st.one_of(st.integers(-5, 50), st.floats(-10, 2000), st.text(max_size=3), st.booleans())
FIELDS = st.dictionaries(
    st.sampled_from(
        ["successor", "repeated", "began", "step", "reached", "usual", "ranks", "of", "shares"]
    ),
    VALUES,
)


@given(st.lists(st.tuples(st.floats(0, 1000), KNOWN, FIELDS), min_size=1, max_size=30))
@example([(0.0, "start", {}), (1.0, "start", {"successor": 1})])
def test_every_moment_counts_once_whatever_the_journal_says(entries):
    job = Job(most=1)
    begun = None
    for time, kind, data in sorted(entries, key=lambda e: e[0]):
        goes_on = any(data.get(name) is True for name in ("successor", "repeated"))  # 1 is no flag
        fresh = kind == "start" and not goes_on
        begun = time if fresh or begun is None else begun
        job.add(Record(kind, time, data))
    spent = job.spent
    assert set(spent.seconds) == set(KINDS) and min(spent.seconds.values()) >= 0
    assert sum(spent.seconds.values()) == pytest.approx(spent.time - begun, abs=1e-6)
    assert 0 <= spent.goodput <= 1


def slow(at, rank, state, late, step=0.1, began=None):
    began = at if began is None else began
    data = {"rank": rank, "state": state, "late": late, "step": step, "began": began}
    return at, "slow", data


def test_the_others_wait_for_a_slow_rank():
    spent = after(
        START,
        LOOP,
        slow(30.0, 2, "begun", 0.05, began=20.0),  # it is named 10 s late
        slow(40.0, 2, "changed", 0.08),
        slow(45.0, 1, "begun", 0.02),  # all wait for the slowest
        (50.0, "fault", {"incident": 1, "began": 50.0}),
        (55.0, "incident", {"incident": 1, "step": 5, "reached": 5}),
        slow(60.0, 2, "over", 0.0),
        slow(70.0, 1, "over", 0.0),
        until=80.0,
    )
    lost = 10 * 0.5 + 10 * 0.5 + 10 * 0.8 + 5 * 0.8 + 10 * 0.2
    assert seconds(spent) == pytest.approx(
        {"starting": 10.0, "incident": 5.0, "slow": lost, "training": 70.0 - 5.0 - lost}
    )


def test_a_fault_that_is_older_than_its_entry_while_a_rank_is_slow():
    late = (40.0, "fault", {"incident": 1, "began": 30.0})
    spent = after(START, LOOP, slow(20.0, 2, "begun", 0.05), late, until=40.0)
    assert seconds(spent) == pytest.approx(
        {"starting": 10.0, "incident": 10.0, "slow": 5.0, "training": 15.0}
    )


def test_an_incident_that_turns_out_to_have_begun_earlier():
    spent = after(
        START,
        LOOP,
        (40.0, "fault", {"incident": 1, "began": 40.0}),
        (42.0, "incident", {"incident": 1, "began": 31.0, "seconds": 11.0}),
        until=50.0,
    )
    assert seconds(spent) == {"starting": 10.0, "incident": 11.0, "training": 29.0}


def test_a_report_counts_slow_ranks_the_same():
    told = [
        START,
        LOOP,
        slow(30.0, 2, "begun", 0.05, began=20.0),
        elastic(35.0, 4, 2),
        (38.0, "pause", {"step": 9}),
        (39.0, "continue", {}),
        slow(40.0, 2, "over", 0.0),
        (50.0, "end", {}),
    ]
    job = account.read([Record(kind, time, data) for time, kind, data in told])
    assumed = Assumptions(500, True, 300.0, False)
    found = account.of_job(job, assumed)
    assert found.goodput == pytest.approx(after(*told, until=50.0).goodput)
    assert found.slow_seconds == pytest.approx(20 * 0.5 - 0.5)
    assert [(s.rank, s.ratio) for s in found.slow] == [(2, 2.0)]

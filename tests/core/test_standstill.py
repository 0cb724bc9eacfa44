"""When a job counts as standing still, and which ranks are somewhere else than the others."""

from __future__ import annotations

from taskd.core.hang.standstill import NOWHERE, WORKING, Standstill, apart, listed, places
from taskd.messages.from_agent import ProgressReport


def answers(now, cpu=0.0, began=0.0, ranks=3, **changes):
    """Of ranks in step 5 since `began`; `cpu`: what each has used."""
    usual = {
        "answered": True,
        "collectives": 2,
        "waiting": False,
        "overdue": True,
        "where": "computing",
        "limit": 2.0,
    }
    return {
        r: ProgressReport(
            rank=r,
            incarnation=0,
            call=1,
            step=changes.get("step", 5),
            seconds=now - began,
            cpu=cpu,
            **usual | {k: v for k, v in changes.items() if k != "step"},
        )
        for r in range(ranks)
    }


def first_found(allowed, working=0.0, until=100, **changes):
    """The first second at which the job counts as standing still, looked at once a second from the
    second on; None: never."""
    job = Standstill(allowed)
    for now in range(2, until):
        if job.found(answers(now, cpu=working * now, **changes), now):
            return now
    return None


def test_ranks_that_idle_stand_still_after_the_limit():
    assert first_found(10) == 12  # whether they idle is known from the first look on


def test_ranks_that_work_have_longer():
    assert first_found(10, working=1.0) == WORKING * 10


def test_ranks_that_work_have_longer_than_their_own_limit():
    assert first_found(10, working=1.0, limit=20.0) == WORKING * 20


def test_what_is_announced_or_over_or_waited_for_is_no_standstill():
    assert first_found(10, patient=True) is None
    assert first_found(10, left=True) is None
    assert first_found(10, waiting=True) is None
    assert first_found(None) is None


def test_any_progress_counts():
    job = Standstill(10)
    for now in range(2, 60):
        moving = answers(now, collectives=now // 8)
        assert not job.found(moving | answers(now, ranks=1), now)
    assert job.seconds(60) <= 60


def test_one_that_works_keeps_the_others_waiting():
    job = Standstill(10)
    for now in range(2, int(WORKING * 10)):
        assert not job.found(answers(now) | answers(now, cpu=now, ranks=1), now), now
    assert job.found(answers(now + 1) | answers(now + 1, cpu=now, ranks=1), now + 1)


def test_a_repair_begins_anew():
    job = Standstill(10)
    for now in range(2, 12):
        assert not job.found(answers(now), now)
    job.forget()
    assert not job.found(answers(12, began=11.5), 12)


def test_a_long_operation_that_has_ended_is_no_standstill():
    job = Standstill(10)
    for now in range(2, 90):
        assert not job.found(answers(now) | answers(now, ranks=1, patient=True), now), now
    assert not job.found(answers(90) | answers(90, ranks=1, began=89), 90)
    job = Standstill(10)  # which nobody has looked at
    assert not job.found(answers(3), 3) and not job.found(answers(500, began=497), 500)


def test_a_repair_may_take_its_own_time():
    job = Standstill(10)
    found = [now for now in range(2, 200) if job.found(answers(now), now, least=60.0)]
    assert found[0] == 62


def test_who_is_somewhere_else_than_most():
    there = answers(9, where="at data.py:3 (read)") | answers(9, ranks=1, where="")
    found = places(there)
    assert found == {"at data.py:3 (read)": [1, 2], NOWHERE: [0]}
    assert apart(found) == {0: NOWHERE}
    assert listed(found) == f"ranks [1, 2]: at data.py:3 (read); rank 0: {NOWHERE}"
    lines = answers(9, where="at data.py:3 (read)")
    lines |= answers(9, ranks=1, where="at data.py:4 (read)")
    assert places(lines) == {"at data.py:4 (read)": [0, 1, 2]}
    halves = places(answers(9, ranks=4, where="a") | answers(9, ranks=2, where="b"))
    assert apart(halves) == {} and apart(places(answers(9))) == {} and apart({}) == {}

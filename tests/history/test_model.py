"""The fold over a journal, apart from what its views show."""

from __future__ import annotations

from taskd.history.facts import OPEN, RANKS
from taskd.history.model import Job, of_records
from tests.history.journals import (
    BEGIN,
    KILLED,
    STORY,
    elastic,
    incident,
    join,
    progress,
    record,
    start,
)


def job(*records, **made):
    found = of_records(records, **made)
    assert found is not None
    return found


def test_of_a_long_life_the_newest_is_kept():
    """A manager may run for months."""
    many = [incident(n, 200.0 + n, 0.5, KILLED) for n in range(1, 1000)]
    many += [progress(2000.0 + n, n) for n in range(1000)]
    many += [record("protected", 4000.0), record("pause", 4001.0), record("continue", 4002.0)] * 9
    found = job(*BEGIN, *many, most=3)
    for kept in (found.incidents, found.samples, found.protected, found.paused):
        assert len(kept) == 3
    assert [i.number for i in found.incidents] == [997, 998, 999] and found.closed == 999
    assert found.samples[-1].step == 999
    whole = job(*BEGIN, *many)
    assert len(whole.incidents) == 999 and whole.spent == found.spent


def test_rounds_are_kept_for_those_who_read_them():
    over = next(r for r in STORY if r.kind == "incident")
    assert job(over).incidents[0].rounds == []
    kept = job(over, read_round=lambda told: told["round"] if told["round"] else None)
    assert kept.incidents[0].rounds == [1]


def test_a_restart_ends_what_was_under_way():
    fault = record("fault", 210.0, incident=1, began=209.0, text=KILLED)
    pause = record("pause", 200.0, step=50, moving=False)
    found = job(*BEGIN, pause, fault, record("restart", 220.0, why="x"))
    assert (found.in_loop, found.open, found.pause) == (False, None, None)
    assert found.paused == [(200.0, 220.0)] and found.activity == "starting"
    assert [(i.result, i.seconds) for i in found.incidents] == [(OPEN, 11.0)]
    assert found.closed == 0  # nobody has said so


def test_a_pause_for_a_move_is_none_of_an_operator():
    moving = record("pause", 200.0, step=50, moving=True)
    assert job(*BEGIN, moving, record("continue", 210.0)).paused == []
    found = job(*BEGIN, moving, record("pause", 205.0, step=52), record("continue", 210.0))
    assert found.paused == [(205.0, 210.0)]


def test_what_an_incident_was_about_stays_when_nodes_change():
    lost = record("lost", 199.0, node=1, why="its process has ended")
    found = job(*BEGIN, lost, incident(1, 200.0, 4.0, KILLED, ranks=[3]), join(1, "10.0.0.9"))
    (was,) = found.incidents
    assert was.hosts[1] == "10.0.0.2" and found.hosts[1] == "10.0.0.9"
    assert (was.lost, was.ranks, found.lost) == ({1}, [3], {})
    assert found.places.of(3) == (1, 1) and found.places.of(99) == (49, 1)


def test_only_a_start_from_nothing_forgets():
    follows = Job(most=5)
    for entry in STORY:
        follows.add(entry)
    follows.add(start(2000.0, successor=True))
    follows.add(start(2001.0, repeated=True))
    assert follows.closed == 3 and follows.managers == 2
    follows.add(start(3000.0))
    assert (follows.closed, follows.managers, follows.began, follows.most) == (0, 1, 3000.0, 5)


def test_how_many_ranks_train():
    found = job(*BEGIN, elastic(200.0, 4, [[2, 3, 1]], 2), elastic(250.0, 4, [[2, 3, 1]], 2))
    assert found.shrunk is not None and found.shrunk.since == 200.0  # a manager says it once more
    assert found.away == {1} and found.shrunken == [] and found.spent.shares == 2
    found = job(*BEGIN, elastic(200.0, 4, [[2, 3, 1]], 2), elastic(260.0, 2, [[2, 5, 1]], 3))
    assert found.shrunk is not None
    assert (found.shrunk.since, found.away, found.spent.shares) == (260.0, {1, 2}, 3)
    for last in (elastic(300.0), record("restart", 300.0), record("end", 300.0, ok=True)):
        found = job(*BEGIN, elastic(200.0, 4, [[2, 3, 1]], 2), last)
        (was,) = found.shrunken
        assert (found.shrunk, found.away, found.spent.shares) == (None, set(), 1)
        assert (was.since, was.until, was.ranks) == (200.0, 300.0, 4)
    found.finish()
    assert len(found.shrunken) == 1


def test_the_ranks_that_are_away_may_be_anything():
    for away in (None, [1], [[5]], [["a", 2, 1]], [[3, 2, 1]], [[0, 3, 0]], [[-1, 3, 1]]):
        found = job(*BEGIN, record("elastic", 200.0, ranks=4, of=6, shares=-3, away=away))
        assert found.shrunk is not None and found.shrunk.missing == found.away == set()
        assert found.shrunk.who == "2 ranks" and found.spent.shares == 1
    endless = job(*BEGIN, elastic(200.0, 4, [[0, 9_999_999_999, 1]], 2))
    assert endless.shrunk is not None and len(endless.shrunk.missing) == RANKS
    for of in (4, 3, 0, None):  # all of them
        assert job(*BEGIN, record("elastic", 200.0, ranks=4, of=of)).shrunk is None


def test_growth_in_the_log():
    found = job(*BEGIN, elastic(200.0, 4, [[2, 3, 1]], 2), elastic(300.0))
    assert [line.text for line in found.lines if line.kind == "elastic"] == [
        "4 of 6 ranks train, a step takes up to 2 times as long; away: ranks 2-3",
        "all ranks train",
    ]

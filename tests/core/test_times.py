"""When what happened to which rank in a round: compact, in order, bounded."""

from __future__ import annotations

import json

from taskd.core.incident import times
from taskd.core.incident.times import COMMITTED, INTERRUPTED, RankTimes


def test_moments_are_told_by_rank_in_ms_after_the_incident_began():
    round_ = RankTimes(2, "retry", 3, 101.0)
    round_.note(INTERRUPTED, 2, 101.25)
    round_.note(INTERRUPTED, 0, 101.5)
    round_.note(COMMITTED, 2, 102.0)
    assert round_.for_journal(100.0) == {
        "round": 2,
        "strategy": "retry",
        "began": 1000.0,
        "interrupted": [1500.0, None, 1250.0],
        "committed": [None, None, 2000.0],
    }


def test_the_first_time_counts_and_nothing_was_before_the_round():
    round_ = RankTimes(1, "retry", 1, 101.0)
    round_.note(INTERRUPTED, 0, 99.0)
    round_.note(INTERRUPTED, 0, 103.0)
    assert round_.for_journal(101.0)["interrupted"] == [0.0]


def test_of_a_large_job_the_last_are_told():
    ranks = times.MOST + 1
    round_ = RankTimes(1, "retry", ranks, 0.0)
    for rank in range(ranks):
        round_.note(INTERRUPTED, rank, (rank * 7919 % ranks) / 1e3)
    told = round_.for_journal(0.0)["interrupted"]
    assert (told["ranks"], told["first"], len(told["last"])) == (ranks, 0.0, times.LAST)
    assert told["last"][0][1] == ranks - 1
    assert all(rank * 7919 % ranks == late for rank, late in told["last"])
    assert len(json.dumps(times.for_journal([round_] * 8, 0.0))) < 1000  # one round


def test_of_many_rounds_the_newest_are_told():
    rounds = [RankTimes(n, "retry", 2, 0.0) for n in range(20)]
    assert [r["round"] for r in times.for_journal(rounds, 0.0)] == list(range(12, 20))

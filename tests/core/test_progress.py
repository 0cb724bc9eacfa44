"""Where the ranks are, by what agents say: sums for any job, each rank of a small one."""

from __future__ import annotations

from taskd.core.progress import WINDOW, Progress, Seen
from taskd.messages.from_agent import GONE, PHASES, NodeProgress
from taskd.messages.to_operator import LISTED, WORST

COMPUTING = PHASES.index("computing")


def said(step, usual, phase=COMPUTING, ranks=2, total=0):
    return NodeProgress((step,) * ranks, bytes((phase,)) * ranks, (usual,) * ranks, total)


def test_nothing_is_known_before_the_first_heartbeat():
    assert Progress().seen() == Seen()


def test_a_small_job_is_told_rank_by_rank():
    progress = Progress()
    progress.heard(1, (2, 3), NodeProgress((8, 7), bytes((1, 7)), (100_000, 300_000), 50), 5.0)
    progress.heard(0, (0, 1), said(9, 100_000), 4.0)
    seen = progress.seen()
    assert (seen.step, seen.highest, seen.total, seen.usual, seen.heard) == (7, 9, 50, 0.1, 4.0)
    assert seen.phases == {"computing": 3, "fetching": 1}
    assert [(r.rank, r.node, r.step, r.phase, r.slow) for r in seen.listed] == [
        (0, 0, 9, "computing", False),
        (1, 0, 9, "computing", False),
        (2, 1, 8, "computing", False),
        (3, 1, 7, "fetching", True),
    ]
    assert [(r.rank, r.usual) for r in seen.slow] == [(3, 0.3)]


def test_of_a_large_job_the_worst_are_told():
    progress, nodes = Progress(), 1000
    for node in range(nodes):
        ranks = tuple(range(10 * node, 10 * node + 10))
        usual = 100_000 if node % 50 else 200_000 + node
        progress.heard(node, ranks, said(node % 3, usual, ranks=10), 0.0)
    progress.heard(7, tuple(range(70, 80)), said(2, 100_000, GONE, ranks=10), 0.0)
    seen = progress.seen()
    assert (seen.step, seen.highest, seen.phases["gone"]) == (0, 2, 10)
    assert len(seen.slow) == WORST and {r.node for r in seen.slow} == {950}
    assert len(seen.listed) <= LISTED and {r.phase for r in seen.listed} == {"gone"}


def test_the_slow_ones_are_listed_where_there_are_too_many_ranks_for_all():
    progress = Progress()
    for node in range(LISTED):
        progress.heard(node, (2 * node, 2 * node + 1), said(5, 100 if node != 9 else 900), 0.0)
    assert [r.rank for r in progress.seen().listed] == [18, 19]


def test_a_node_that_is_lost_does_not_count():
    progress = Progress()
    progress.heard(0, (0, 1), said(3, 1), 0.0)
    progress.heard(1, (2, 3), said(9, 1), 0.0)
    progress.drop(0)
    assert progress.seen().step == 9


def test_what_does_not_fit_the_ranks_of_the_node_is_ignored():
    progress = Progress()
    for wrong in (said(1, 1, ranks=3), NodeProgress((1,), b"\1\1", (1, 1)), said(1, 1, ranks=0)):
        progress.heard(0, (0, 1), wrong, 0.0)
    assert progress.seen() == Seen()
    progress.heard(0, (), said(1, 1, ranks=0), 0.0)
    assert progress.seen() == Seen()


def test_an_unknown_phase_is_a_number():
    progress = Progress()
    progress.heard(0, (0, 1), said(1, 1, 200), 0.0)
    assert progress.seen().phases == {"200": 2}


def test_the_rate_is_that_of_the_last_minute():
    progress = Progress()
    assert progress.rate(-1, 0.0) == progress.rate(10, 1.0) == 0.0
    for second in range(1, 200):
        rate = progress.rate(10 + (second if second < 100 else 2 * second - 100), 1.0 + second)
    assert rate == 120.0
    assert len(progress._steps) <= WINDOW + 2
    assert progress.rate(5, 300.0) == 0.0  # the job has gone back: anew

"""Where the ranks are, by what agents say: sums for any job, each rank of a small one."""

from __future__ import annotations

import random

import pytest
from msgspec import structs

from taskd.core.job.progress import WINDOW, Progress, Seen
from taskd.messages.node_progress import GONE, PHASES, SETUP, NodeProgress
from taskd.messages.to_operator import WORST

COMPUTING = PHASES.index("computing")


def said(step, usual, phase=COMPUTING, ranks=2, total=0):
    return NodeProgress((step,) * ranks, bytes((phase,)) * ranks, (usual,) * ranks, total)


def test_nothing_is_known_before_the_first_heartbeat():
    assert Progress().seen() == Seen()


def test_a_small_job():
    progress = Progress()
    progress.heard(1, (2, 3), NodeProgress((8, 7), bytes((1, 7)), (100_000, 300_000), 50), 5.0)
    progress.heard(0, (0, 1), said(9, 100_000), 4.0)
    seen = progress.seen()
    assert (seen.step, seen.highest, seen.total, seen.usual, seen.heard) == (7, 9, 50, 0.1, 4.0)
    assert seen.phases == {"computing": 3, "fetching": 1}
    assert seen.slow == ((3, 1, 0.3),)


def test_of_a_large_job_the_worst_are_told():
    progress, nodes = Progress(), 1000
    for node in range(nodes):
        ranks = tuple(range(10 * node, 10 * node + 10))
        usual = 100_000 if node % 50 else 200_000 + node
        progress.heard(node, ranks, said(node % 3, usual, ranks=10), 0.0)
    progress.heard(7, tuple(range(70, 80)), said(2, 100_000, GONE, ranks=10), 0.0)
    seen = progress.seen()
    assert (seen.step, seen.highest, seen.phases["gone"]) == (0, 2, 10)
    assert len(seen.slow) == WORST and {node for _, node, _ in seen.slow} == {950}
    assert seen.absent == tuple(range(70, 80))


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


def test_a_process_that_has_yet_to_begin_does_not_hold_the_step_back():
    progress = Progress()
    progress.heard(0, (0, 1), NodeProgress((0, 9), bytes((SETUP, COMPUTING)), (0, 1)), 0.0)
    progress.heard(1, (2, 3), said(0, 0, SETUP), 0.0)
    assert progress.seen().step == 9
    progress.heard(0, (0, 1), said(0, 0, SETUP), 0.0)
    assert progress.seen().step == 0  # nobody has


class Trained:
    """A node whose steps take `step` seconds after a set-up, heard every three seconds."""

    def __init__(self, step, first=20.0):
        self.progress, self.step, self.first = Progress(), step, first

    def heard(self, now, late=0.0):
        """`late`: its step has taken so much longer so far."""
        trained = max(now - late - self.first, 0.0)
        at = int(trained / self.step)
        usual = round(self.step * 1e6) if at > 1 else 0
        beat = NodeProgress((at,), bytes((COMPUTING,)), (usual,))
        age = now - self.first - at * self.step if trained else 0.0
        self.progress.heard(0, (0,), structs.replace(beat, age=age), now)
        return self.progress.rate


@pytest.mark.parametrize("step", [0.025, 0.7, 2.0, 10.0])
def test_the_rate_is_right_from_the_tenth_step_on_whenever_heartbeats_come(step):
    """It counts from step to step, so set-up, first steps and the time of a look do not matter."""
    node, draw, now = Trained(step), random.Random(1), 0.0
    while now < 400.0:
        now += draw.uniform(2.5, 3.5)
        rate = node.heard(now)
        if now > 20.0 + max(10 * step, 8.0):
            assert rate == pytest.approx(60.0 / step, rel=1e-3)
    assert len(node.progress._came) <= WINDOW + 2


def test_the_rate_falls_while_a_step_takes_longer_than_usual():
    node = Trained(0.5)
    rates = [node.heard(float(now)) for now in range(50)]
    assert rates[-1] == pytest.approx(120.0)
    assert node.heard(60.0, late=10.5) < 95.0 < node.heard(53.0, late=3.5)


def test_a_standstill_says_nothing_about_the_speed():
    node = Trained(0.5)
    for now in range(50):
        node.heard(float(now))
    node.first += 30.0
    node.progress.stood(30.0)
    assert node.heard(81.0) == pytest.approx(120.0)


def test_a_job_that_goes_back_begins_anew():
    node = Trained(0.5)
    for now in range(50):
        node.heard(float(now))
    node.first += 20.0
    assert node.heard(51.0) == 0.0


def test_how_long_ranks_have_waited_is_told_every_few_seconds():
    progress, told = Progress(), []
    for second in range(0, 21, 3):
        step, ms = 10 * second, 1000
        beat = NodeProgress((step, step), bytes((1, 1)), (100_000, 100_000))
        waits = (step * 30 * ms, step * 1 * ms)
        beat = structs.replace(beat, waited=waits, incarnations=(0, 0 if second < 15 else 1))
        if (found := progress.heard(0, (0, 1), beat, float(second))) is not None:
            told.append(found)
    assert [(t.before, t.step) for t in told] == [(0, 60), (60, 120)]  # then another process
    assert told[0].taken == 0.1 and told[0].waited == pytest.approx((0.03, 0.001))

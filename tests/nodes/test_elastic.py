"""Nodes are lost and nobody comes: the job goes on with fewer replicas, and grows again.

Losses, and the samples that each was computed from, are those of a run in which the same shares
were computed by hand in the same order; the samples are those of the full job."""

from __future__ import annotations

import os
import signal

import by_hand
import pytest
from cluster import Cluster
from training import Result

STEPS = "144"
ALONE = "retry,recover-in-place,elastic-training"


class Elastic(Cluster):
    def __init__(self, machines, directory, kind, nodes=4, ranks=1, strategy=ALONE, **env):
        self.kind = kind
        super().__init__(
            machines, directory, nodes, ranks, "elastic.py", kind, STEPS, strategy=strategy, **env
        )

    def shrunk(self, ranks: int) -> None:
        self.until(
            f"{ranks} ranks trained",
            lambda: f"{ranks} of {self.world} ranks train" in self.log("manager*.log"),
        )

    def check(self, result: Result, present: list[int]) -> None:
        plan = by_hand.plan(self.directory)
        by_hand.assert_as_by_hand(result, self.world, self.kind, STEPS, present, plan)


@pytest.mark.parametrize("kind", ["shares", pytest.param("accumulate", marks=pytest.mark.long)])
def test_a_node_is_lost_and_comes_back(hosts, tmp_path, kind):
    with Elastic((machines := hosts(5)), tmp_path / "job", kind) as job:
        job.trains()
        machines.signal(3, signal.SIGKILL)
        closed = job.repaired()
        assert closed["strategy"] == "elastic-training" and closed["ranks"] == [], closed
        job.shrunk(3)
        job.trains_on(0, 1, 2)
        # the loaders' next pass has begun
        job.until("step 14", lambda: max(job.result().steps(0)) > 14)
        job.standby(4)
        grown = job.repaired()
        assert grown["strategy"] == "grow" and grown["ranks"] == [3], grown
        job.trains()
        # one pass more has begun: the next process goes through those that this one has not seen
        job.until("step 27", lambda: max(job.result().steps(3)) > 27)
        os.kill(job.result().pids(3)[-1], signal.SIGKILL)
        assert job.repaired()["strategy"] == "recover-in-place"
        job.trains()
        result = job.end(3)
    job.check(result, [0, 1, 2, 3])


@pytest.mark.long
def test_down_to_one_replica_and_ranks_die_meanwhile(hosts, tmp_path):
    with Elastic((machines := hosts(4)), tmp_path / "job", "shares") as job:
        job.trains()
        machines.signal(1, signal.SIGKILL)
        assert job.repaired()["strategy"] == "elastic-training"
        job.trains_on(0, 2, 3)
        # one that stands in for another
        os.kill(job.result().pids(0)[-1], signal.SIGKILL)
        assert job.repaired()["strategy"] == "recover-in-place"
        job.trains_on(0, 2, 3)
        # node 0, with the manager, and the rank that stands in
        machines.signal(0, signal.SIGKILL)
        assert job.repaired()["strategy"] == "elastic-training"
        job.trains_on(2, 3)
        result = job.end(0, 1)
    job.check(result, [2, 3])


@pytest.mark.long
def test_a_rank_leaves_and_its_node_stays(hosts, tmp_path):
    only = "elastic-training"
    with Elastic(hosts(2), tmp_path / "job", "shares", 2, 2, strategy=only) as job:
        job.trains()
        os.kill(job.result().pids(3)[-1], signal.SIGKILL)
        closed = job.repaired()
        assert closed["strategy"] == "elastic-training", closed
        job.trains_on(0, 1, 2)
        os.kill(job.result().pids(0)[-1], signal.SIGKILL)
        assert job.repaired()["strategy"] == "elastic-training"
        job.trains_on(1, 2)
        result = job.end()
    job.check(result, [1, 2])

"""A sharded job loses nodes: what exists once comes back from the node that keeps its records."""

from __future__ import annotations

import os
import signal

import training
from cluster import Cluster
from test_nodes import STRATEGY

ARGUMENTS = ("parallel.py", "120", "fsdp")


def test_a_node_is_lost_then_a_rank_then_node_0(hosts, tmp_path):
    reference = training.undisturbed(tmp_path / "undisturbed", 4, *ARGUMENTS)
    with Cluster(
        (machines := hosts(4)), tmp_path / "job", 2, 2, *ARGUMENTS, strategy=STRATEGY
    ) as job:
        job.standby(2, 3)
        job.ready(2)
        machines.signal(1, signal.SIGKILL)
        first = job.repaired()
        assert first["strategy"] == "recover" and first["ranks"] == [2, 3], first
        job.trains()
        os.kill(job.result().pids(3)[-1], signal.SIGKILL)
        assert job.repaired()["strategy"] == "recover-in-place"
        job.trains()
        machines.signal(0, signal.SIGKILL)
        # the manager was there too: the next one may begin when the node is taken over already
        assert job.repaired()["strategy"] in ("recover", "recover-in-place")
        job.trains()
        result = job.end(0, 1)
    training.assert_equal(result, reference, 4)

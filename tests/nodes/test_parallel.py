"""A sharded job moves a node and loses others: what exists once comes from its process, or from the
node that keeps its records."""

from __future__ import annotations

import os
import signal

import pytest
import training
from cluster import Cluster
from test_nodes import STRATEGY

ARGUMENTS = ("parallel.py", "150", "fsdp")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return training.undisturbed(tmp_path_factory.mktemp("undisturbed"), 4, *ARGUMENTS)


@pytest.mark.long
def test_two_neighbours_are_lost_at_once(hosts, tmp_path, undisturbed):
    """Of four nodes with one rank each, and a shard that no other has: one of the two kept the
    other's records, another node does so too."""
    machines = hosts(6)
    with Cluster(machines, tmp_path / "job", 4, 1, *ARGUMENTS, strategy=STRATEGY) as job:
        job.standby(4, 5)
        job.ready(2)
        for host in (1, 2):
            machines.signal(host, signal.SIGKILL)
        lost = job.repaired()
        assert lost["strategy"] == "recover" and lost["ranks"] == [1, 2], lost
        job.trains()
        result = job.end(1, 2)
    training.assert_equal(result, undisturbed, 4)


@pytest.mark.long
def test_a_node_moves_another_is_lost_then_a_rank_then_node_0(hosts, tmp_path, undisturbed):
    """Whole states are recorded at every third step."""
    machines = hosts(5)
    with Cluster(
        machines,
        tmp_path / "job",
        2,
        2,
        *ARGUMENTS,
        strategy=STRATEGY,
        TASKD_SNAPSHOT_STEPS="3",
        TASKD_SUBHEALTHY_STRATEGY="hotSwitch",
    ) as job:
        job.standby(2, 3, 4)
        job.ready(3)
        asked = job.subhealth(1)
        text, _ = asked.communicate(timeout=90)
        assert "node 1 has moved to standby" in text, (text, job.log("*.log")[-9000:])
        moved = job.repaired()
        assert moved["strategy"] == "hot-switch" and moved["ranks"] == [2, 3], moved
        job.trains()
        machines.signal(job.host_of(2), signal.SIGKILL)
        lost = job.repaired()
        assert lost["strategy"] == "recover" and lost["ranks"] == [2, 3], lost
        job.trains()
        os.kill(job.result().pids(3)[-1], signal.SIGKILL)
        assert job.repaired()["strategy"] == "recover-in-place"
        job.trains()
        machines.signal(0, signal.SIGKILL)
        # the manager was there too: the next one may begin when the node is taken over already
        assert job.repaired()["strategy"] in ("recover", "recover-in-place")
        job.trains()
        gone = [host for host in range(5) if host not in {job.host_of(r) for r in range(4)}]
        result = job.end(*gone)
    training.assert_equal(result, undisturbed, 4)

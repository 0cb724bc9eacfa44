"""Hosts with IPv6 alone, known by name, whose launchers meet by c10d with the same command."""

from __future__ import annotations

import os
import signal

import pytest
import training
from cluster import STEPS, Cluster
from launchers import STRATEGY


class Plain(Cluster):
    """Nothing is said about addresses."""

    def launch(self, host: int, node: int, *options: str, **environment: str) -> None:
        more = {"POD_IP": "", "GLOO_SOCKET_IFNAME": ""}
        super().launch(host, node, *options, **{**more, **environment})


@pytest.mark.long
def test_ranks_and_hosts_are_lost_the_one_with_the_store_last(hosts, tmp_path, reference):
    """The launcher of a lost node is started again by the same command, and takes the place of the
    next one."""
    machines = hosts(3, ipv6=True)
    job = Plain(
        machines,
        tmp_path / "job",
        2,
        2,
        "steered.py",
        STEPS,
        strategy=STRATEGY,
        meets="host-1",
    )
    with job:
        job.trains()
        (manager,) = job.managers(1)  # rank 0 is on host 0, whose name torch sorts first
        assert job.host_of_process(manager) == 1 and job.host_of(0) == 0
        for rank in (0, 3):
            os.kill(job.result().pids(rank)[-1], signal.SIGKILL)
            assert job.repaired()["strategy"] == "recover-in-place"
        job.standby(2)
        job.ready(1)
        machines.signal(0, signal.SIGKILL)
        assert job.repaired()["ranks"] == [0, 1]
        job.launch(0, 0)
        job.ready(2)
        machines.signal(1, signal.SIGKILL)
        assert job.repaired()["ranks"] == [2, 3]
        job.trains()
        assert [job.host_of(rank) for rank in range(4)] == [2, 2, 0, 0]
        result = job.end(1)
    training.assert_equal(result, reference, 4)

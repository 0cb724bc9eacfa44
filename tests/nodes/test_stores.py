"""Who reaches the stores in which a job's ranks meet."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import training
from cluster import STEPS, Cluster

LIMIT = 100
STRATEGY = "retry,recover-in-place,recover"
# what a stranger does: connects, and asks for the keys
READS = """
import sys, torch.distributed as dist
from datetime import timedelta
host, port = sys.argv[1], int(sys.argv[2])
store = dist.TCPStore(
    host, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=2)
)
print("keys", store.num_keys())
"""


def reads(machines, job, store, *hosts):
    """What a process on each of these hosts gets from the store."""
    asked = [
        subprocess.Popen(
            machines.command(host, [sys.executable, "-c", READS, *store]),
            env=job.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for host in hosts
    ]
    said = [process.communicate(timeout=LIMIT)[0] for process in asked]
    return [text.partition(" ")[0].strip() or "nothing" for text in said]


def stores(job):
    """Where ranks were sent, the newest last."""
    found = re.findall(r"store=\('([\d.]+)', (\d+)\)", job.log("manager*.log"))
    return [address for address in found if address[1] != "0"]


def test_a_stranger_reaches_no_store_and_a_standby_with_a_new_address_does(
    hosts, tmp_path, reference
):
    with Cluster(
        (machines := hosts(5)), tmp_path / "job", 2, 2, "steered.py", STEPS, strategy=STRATEGY
    ) as job:
        job.standby(2, 3)
        job.ready(2)
        # the store of the first generation; host 4 is no part of the job
        first = stores(job)[-1]
        assert first[0] == machines.address(0)
        assert reads(machines, job, first, 1, 2, 4) == ["keys", "keys", "nothing"]
        machines.signal(1, signal.SIGKILL)
        assert job.repaired()["strategy"] == "recover"
        job.trains()
        # the next store is that of another host, which an agent made that was a standby
        machines.signal(0, signal.SIGKILL)
        incident = job.repaired()
        assert incident["strategy"] == "recover" and incident["ranks"] == [0, 1], incident
        job.trains()
        second = stores(job)[-1]
        assert second[0] in (machines.address(2), machines.address(3))
        assert reads(machines, job, second, 2, 3, 4) == ["keys", "keys", "nothing"]
        result = job.end(0, 1)
    training.assert_equal(result, reference, 4)
    said = result.log("agent*.log")
    assert f"rendezvous store from {machines.address(4)} were closed" in said, said[-3000:]
    assert machines.address(1) not in "".join(re.findall(r"store from .* were closed", said))


def test_everybody_reaches_a_store_where_the_job_says_so(hosts, tmp_path):
    with Cluster(
        (machines := hosts(3)),
        tmp_path / "job",
        2,
        1,
        "steered.py",
        STEPS,
        strategy=STRATEGY,
        TASKD_STORE_PEERS="any",
    ) as job:
        job.trains()
        assert reads(machines, job, stores(job)[-1], 2) == ["keys"]


def test_a_network_that_is_named_reaches_a_store(hosts, tmp_path):
    machines = hosts(4)
    with Cluster(
        machines,
        tmp_path / "job",
        2,
        1,
        "steered.py",
        STEPS,
        strategy=STRATEGY,
        TASKD_STORE_PEERS=f"192.168.0.0/16, {machines.address(2)}",
    ) as job:
        job.trains()
        assert reads(machines, job, stores(job)[-1], 2, 3) == ["keys", "nothing"]


def test_a_rank_that_is_kept_away_ends_the_job_with_a_word(hosts, tmp_path):
    """Its host sends from an address that it has been given since: no agent has told that one."""
    # without `recover`: where every rebuild fails before its limit of 20 s, which takes luck, that
    # waits for a standby
    with Cluster(
        (machines := hosts(2)),
        tmp_path / "job",
        2,
        1,
        "steered.py",
        STEPS,
        strategy="retry,recover-in-place",
    ) as job:
        job.trains()
        machines.send_from(1, "10.213.7.200")
        os.kill(job.result().pids(1)[-1], signal.SIGKILL)
        result = job.end()
    assert result.status > 0, result.output[-3000:]
    said = result.log("agent*.log")
    assert "rendezvous store from 10.213.7.200 were closed" in said, said[-3000:]
    assert "name their networks in TASKD_STORE_PEERS" in said

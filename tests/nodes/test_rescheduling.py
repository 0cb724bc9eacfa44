"""`pod-rescheduling: on`: a pod is replaced, the other pods stay, and all ranks are restarted."""

from __future__ import annotations

import os
import signal

import cluster
import pytest
import training
from cluster import STEPS, Cluster

SERVICE = "job-master-0"


@pytest.fixture(scope="module")
def unprotected(tmp_path_factory):
    base = tmp_path_factory.getbasetemp()
    return training.References(base)(3, "unprotected.py", cluster.STEPS)


def pods(machines, folder, script, **more):
    """Three pods of one rank; host 0 has node 0's. The job has no strategy."""
    machines.serve(SERVICE, 0)
    more = {"TASKD_POD_RESCHEDULING": "on", **more}
    return Cluster(machines, folder, 3, 1, script, STEPS, strategy="exit", master=SERVICE, **more)


def launchers(job, *hosts):
    return [job.launchers[h].pid for h in hosts if job.launchers[h].poll() is None]


def replace(machines, job, old, new, node):
    """The pod of `node` is lost, and the next one is on another host."""
    job.trains(12)  # a checkpoint at least
    machines.signal(old, signal.SIGKILL)
    if node == 0:
        machines.serve(SERVICE, new)
        job.until("there was another manager", lambda: "in charge in term 2" in job.log("man*"))
    job.until(
        "its next pod was waited for",
        lambda: "once a replacement pod has come" in job.log("man*"),
    )
    job.launch(new, node)
    job.until(
        "all ranks were restarted", lambda: "every node has an agent again" in job.log("man*")
    )
    job.until("its rank trained there", lambda: job.result().pids(node)[-1] in machines.pids(new))
    job.trains()


@pytest.mark.long
@pytest.mark.parametrize("node", [2, 0])
def test_a_pod_of_a_script_that_knows_nothing_of_taskd(hosts, tmp_path, unprotected, node):
    machines = hosts(4)
    with pods(machines, tmp_path / "job", "unprotected.py") as job:
        job.trains()
        others = [h for h in range(3) if h != node]
        stay = launchers(job, *others)
        replace(machines, job, node, 3, node)
        assert launchers(job, *others) == stay and len(stay) == 2
        # and a rank that dies is restarted with all others, where they are
        os.kill(job.result().pids(1)[-1], signal.SIGKILL)
        job.until("all ranks were restarted", lambda: "rank 1 killed by SIGKILL" in job.log("man*"))
        job.trains()
        result = job.end(node)
    training.assert_equal(result, unprotected, 3)


@pytest.mark.long
def test_a_protected_script_at_the_end_of_the_ladder(hosts, tmp_path):
    machines = hosts(4)
    reference = training.References(tmp_path)(3, "steered.py", STEPS)
    with pods(machines, tmp_path / "job", "steered.py") as job:
        replace(machines, job, 1, 3, 1)
        result = job.end(1)
    training.assert_equal(result, reference, 3)


@pytest.mark.long
def test_no_pod_comes(hosts, tmp_path):
    machines = hosts(3)
    more = {"TASKD_WAIT_RESCHEDULE_TIMEOUT": "30"}
    with pods(machines, tmp_path / "job", "unprotected.py", **more) as job:
        job.trains()
        machines.signal(2, signal.SIGKILL)
        result = job.end(2)
    assert result.status == 1, result.output
    assert "no replacement pod came for nodes [2] within 30 s" in result.output

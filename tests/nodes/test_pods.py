"""Pods that are replaced, as Kubernetes does it: the new one is started like the old one, has
another address, and the job's service name leads to whichever pod is node 0's."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys

import pytest
import training
from cluster import STEPS, Cluster
from stand_ins import stand_in

from tests.kubernetes.api_stand_in import kubeconfig

SERVICE = "job-master-0"


def pods(machines, folder, **more):
    """Four pods of one rank; host 0 has node 0's."""
    machines.serve(SERVICE, 0)
    strategy = "retry,recover-in-place,recover"
    return Cluster(
        machines, folder, 4, 1, "steered.py", STEPS, strategy=strategy, master=SERVICE, **more
    )


def replace_node_0(machines, job):
    """Its pod is lost, and the next one is on host 4."""
    job.trains()
    machines.signal(0, signal.SIGKILL)
    job.until("there was a manager again", lambda: "in charge in term 2" in job.log("man*"))
    # the pod's name is known before it is ready
    machines.serve(SERVICE, 4)
    job.launch(4, 0)
    incident = job.repaired()
    assert (incident["strategy"], incident["ranks"]) == ("recover", [0]), incident
    assert job.host_of(0) == 4
    job.trains()


def test_pods_of_node_0_and_of_the_managers_node_are_replaced(hosts, tmp_path, reference):
    machines = hosts(6)
    with pods(machines, tmp_path / "job") as job:
        replace_node_0(machines, job)
        # the guides' manager.py, which each pod of node 0 runs, leaves the job alone
        (host,) = [h for h in range(6) if job.managers(h)]
        assert host != 4
        begun = subprocess.run(
            machines.command(
                4,
                [sys.executable, "-m", "taskd.manager", "--nodes", "4", "--ranks-per-node", "1"],
            ),
            env={**job.env, "POD_IP": machines.address(4)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert begun.returncode == 4, begun.stderr
        place = f"{machines.address(host)}:{job.env['TASKD_PORT']}"
        assert f"the manager at {place} is in charge" in begun.stderr
        # the manager is lost again, with a node that has never been node 0
        machines.signal(host, signal.SIGKILL)
        job.launch(5, host)
        incident = job.repaired()
        assert (incident["strategy"], incident["ranks"]) == ("recover", [host]), incident
        assert job.host_of(host) == 5
        job.trains()
        result = job.end(0, host)
    training.assert_equal(result, reference, 4)


@pytest.mark.long
def test_the_lease_where_no_directory_is_shared(hosts, tmp_path, reference):
    machines = hosts(6)
    server = f"{machines.address(5)}:8001"
    (log := tmp_path / "job" / "log").mkdir(parents=True)
    with (
        open(log / "continuity.lock", "w") as lock,
        stand_in(machines, 5, tmp_path / "asked", "tests.kubernetes.api_stand_in", server) as api,
        pods(
            machines,
            tmp_path / "job",
            TASKD_KUBERNETES="on",
            KUBECONFIG=str(kubeconfig(tmp_path / "kubeconfig", server)),
            POD_NAME="pod",
        ) as job,
    ):

        def put(group, plural, name, **metadata):
            api.say(json.dumps([group, plural, {"metadata": {"name": name, **metadata}}]))

        def label(value):
            labels = {"process-recover-enable": value}
            put("scheduling.volcano.sh", "podgroups", "job-7", labels=labels)

        fcntl.flock(lock, fcntl.LOCK_EX)  # so that no manager leaves anything there
        put("", "pods", "pod", annotations={"scheduling.k8s.io/group-name": "job-7"})
        label("on")
        replace_node_0(machines, job)
        label("pause")
        job.until(
            "recovery was paused", lambda: "process-recover-enable is pause" in job.log("man*")
        )
        label("on")
        again = "agents remember that recovery is on"
        job.until("it was on again", lambda: again in job.log("man*"))
        os.kill(job.result().pids(0)[-1], signal.SIGKILL)
        assert job.repaired()["strategy"] == "recover-in-place"
        result = job.end(0)
    training.assert_equal(result, reference, 4)
    assert not (log / "continuity.jsonl").exists()

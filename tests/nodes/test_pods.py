"""Pods that are replaced, as Kubernetes does it: the new one is started like the old one, has
another address, and the job's service name leads to whichever pod is node 0's."""

from __future__ import annotations

import signal
import subprocess
import sys

import training
from cluster import STEPS, Cluster

SERVICE = "job-master-0"


def test_pods_of_node_0_and_of_the_managers_node_are_replaced(hosts, tmp_path, reference):
    machines = hosts(6)
    machines.serve(SERVICE, 0)
    with Cluster(
        machines,
        tmp_path / "job",
        4,
        1,
        "steered.py",
        STEPS,
        strategy="retry,recover-in-place,recover",
        master=SERVICE,
    ) as job:
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

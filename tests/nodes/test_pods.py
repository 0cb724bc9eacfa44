"""Pods that are replaced, as Kubernetes does it: the new one is started like the old one, has
another address, and the job's service name leads to whichever pod is node 0's."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import training
import yaml
from cluster import STEPS, Cluster

ROOT = Path(__file__).parents[2]

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


class Api:
    """The API server, a process on a host of its own."""

    def __init__(self, process):
        self._process = process

    def put(self, group, plural, name, **metadata):
        thing = {"metadata": {"name": name, **metadata}}
        self._process.stdin.write(json.dumps([group, plural, thing]) + "\n")
        self._process.stdin.flush()

    def label(self, value):
        self.put(
            "scheduling.volcano.sh",
            "podgroups",
            "job-7",
            labels={"process-recover-enable": value},
        )


@contextmanager
def api_server(machines, host, kubeconfig):
    address = f"{machines.address(host)}:8001"
    command = [sys.executable, "-m", "tests.kubernetes.api_stand_in", address]
    process = subprocess.Popen(
        machines.command(host, command),
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    context = {"cluster": "c", "user": "u", "namespace": "train"}
    content = {
        "current-context": "x",
        "clusters": [{"name": "c", "cluster": {"server": f"http://{address}"}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "x", "context": context}],
    }
    kubeconfig.write_text(yaml.safe_dump(content))
    try:
        yield Api(process)
    finally:
        process.kill()
        process.wait()


def test_the_lease_where_no_directory_is_shared(hosts, tmp_path, reference):
    machines = hosts(6)
    machines.serve(SERVICE, 0)
    (log := tmp_path / "job" / "log").mkdir(parents=True)
    with (
        open(log / "continuity.lock", "w") as lock,
        api_server(machines, 5, tmp_path / "kubeconfig") as api,
        Cluster(
            machines,
            tmp_path / "job",
            4,
            1,
            "steered.py",
            STEPS,
            strategy="retry,recover-in-place,recover",
            master=SERVICE,
            TASKD_KUBERNETES="on",
            KUBECONFIG=str(tmp_path / "kubeconfig"),
            POD_NAME="pod",
        ) as job,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)  # so that no manager leaves anything there
        api.put("", "pods", "pod", annotations={"scheduling.k8s.io/group-name": "job-7"})
        api.label("on")
        job.trains()
        machines.signal(0, signal.SIGKILL)
        job.until("there was a manager again", lambda: "in charge in term 2" in job.log("man*"))
        machines.serve(SERVICE, 4)
        job.launch(4, 0)
        incident = job.repaired()
        assert (incident["strategy"], incident["ranks"]) == ("recover", [0]), incident
        job.trains()
        api.label("pause")
        job.until(
            "recovery was paused", lambda: "process-recover-enable is pause" in job.log("man*")
        )
        api.label("on")
        job.until("it was on again", lambda: "KeepSwitch(switches=2)" in job.log("man*"))
        os.kill(job.result().pids(0)[-1], signal.SIGKILL)
        assert job.repaired()["strategy"] == "recover-in-place"
        result = job.end(0)
    training.assert_equal(result, reference, 4)
    assert not (log / "continuity.jsonl").exists()

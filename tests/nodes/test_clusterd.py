"""ClusterD replaces a node's pod; its part is played by tests/mindcluster/clusterd_stand_in.py, a
process on a host of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import training
from cluster import STEPS, Cluster

ROOT = Path(__file__).parents[2]


class FaultCenter:
    def __init__(self, process, output):
        self._process, self._output = process, output

    def say(self, line):
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def told(self, call):
        """What it was told by such calls."""
        lines = self._output.read_text().rpartition("\n")[0].splitlines()[1:]
        return [x["request"] for x in map(json.loads, lines) if x["call"] == call]


@contextmanager
def fault_center(machines, host, folder):
    folder.mkdir()
    stand_in = "tests.mindcluster.clusterd_stand_in"
    with open(folder / "told", "w") as output:
        process = subprocess.Popen(
            machines.command(
                host,
                [sys.executable, "-m", stand_in, "retry,recover-in-place,recover", "0.0.0.0:8899"],
            ),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=output,
            text=True,
        )
    try:
        yield FaultCenter(process, folder / "told")
    finally:
        process.kill()
        process.wait()


def test_a_pod_is_replaced_then_the_node_of_the_manager_dies(hosts, tmp_path, reference):
    machines = hosts(5)
    with (
        fault_center(machines, 4, tmp_path / "clusterd") as cluster,
        Cluster(
            machines,
            tmp_path / "job",
            2,
            2,
            "steered.py",
            STEPS,
            strategy="retry,recover-in-place,recover",
            MINDX_SERVER_IP=machines.address(4),
        ) as job,
    ):
        job.standby(2, 3)
        job.ready(2)
        job.until("ClusterD had the job", lambda: cluster.told("Subscribe"))
        cluster.say("node 1")
        incident = job.repaired()
        assert (incident["strategy"], incident["ranks"]) == ("recover", [2, 3]), incident
        assert "ClusterD replaces its pod" in " ".join(incident["faults"])
        job.until("ClusterD knew the result", lambda: cluster.told("ReportRecoverStatus"))
        (told,) = cluster.told("ReportRecoverStatus")
        assert 'strategy: "recover"' in told and "code:" not in told, told
        # the pod's launcher ends as one that failed, so that the pod is replaced
        assert job.launchers[1].wait(30) == 1
        job.emptied(1)
        job.trains()
        machines.signal(0, 9)
        incident = job.repaired()
        assert incident["ranks"] == [0, 1], incident
        job.until(
            "the next manager had told ClusterD and been answered",
            lambda: len(cluster.told("ReportRecoverStatus")) == 2,
        )
        job.trains()
        cluster.say("fault 2:0")
        incident = job.repaired()
        assert incident["strategy"] == "retry", incident
        result = job.end(0, 1)
    training.assert_equal(result, reference, 4)

"""ClusterD has a job go on without a node, and grow once the node's next pod is there; its part is
played by tests/mindcluster/clusterd_stand_in.py, a process on a host of its own."""

from __future__ import annotations

import re

import by_hand
import pytest
from cluster import Cluster
from stand_ins import stand_in

CLUSTERD = "tests.mindcluster.clusterd_stand_in"
STEPS = "144"
STRATEGY = "elastic-training"


@pytest.mark.long
@pytest.mark.parametrize("role", ["lead", "follow"])
def test_a_node_is_replaced_while_the_others_train(hosts, tmp_path, role):
    machines = hosts(5)

    def told():
        """What it was told of results, in order: code, strategy, ranks that leave."""
        lines = [c["request"] for c in cluster.lines() if c["call"] == "ReportRecoverStatus"]
        found = []
        for text in lines:
            code = re.search(r"code: (\d+)", text)
            word = re.search(r'strategy: "(\w+)"', text)[1]
            left = re.findall(r'isolateRankIds: "(\d+)"', text)
            found.append((int(code[1]) if code else 0, word, left))
        return found

    with (
        stand_in(machines, 4, tmp_path / "told", CLUSTERD, STRATEGY, "0.0.0.0:8899") as cluster,
        Cluster(
            machines,
            tmp_path / "job",
            3,
            1,
            "elastic.py",
            "shares",
            STEPS,
            strategy=STRATEGY,
            MINDX_SERVER_IP=machines.address(4),
            TASKD_CLUSTERD=role,
            TASKD_CLUSTERD_TIMEOUT="600",  # nothing may wait for it in vain
        ) as job,
    ):
        job.trains()
        job.until(
            "ClusterD had the job", lambda: "Subscribe" in [c["call"] for c in cluster.lines()]
        )
        # its hardware fails, and its launcher stays until ClusterD ends the pod
        cluster.say("node 2")
        closed = job.repaired()
        assert closed["strategy"] == "elastic-training" and closed["ranks"] == [], closed
        assert job.launchers[2].wait(60) == 1
        job.until("ClusterD had been told", lambda: len(told()) == 2)
        assert told() == [(201, "downgrade", ["2"]), (0, "downgrade", [])]
        job.trains_on(0, 1)
        job.standby(3)
        job.until(
            "the standby waited for ClusterD",
            lambda: "ready to be node 2, which waits" in job.log("manager*.log"),
        )
        job.trains_on(0, 1)
        cluster.say("pods")
        grown = job.repaired()
        assert grown["strategy"] == "grow" and grown["ranks"] == [2], grown
        job.until("ClusterD had been told", lambda: len(told()) == 3)
        assert told()[-1] == (0, "upgrade", [])
        job.trains()
        result = job.end(2)
    plan = by_hand.plan(tmp_path / "job")
    by_hand.assert_as_by_hand(result, 3, "shares", STEPS, [0, 1, 2], plan)

"""ClusterD replaces a node's pod; its part is played by tests/mindcluster/clusterd_stand_in.py, a
process on a host of its own."""

from __future__ import annotations

import signal

import pytest
import training
from cluster import STEPS, Cluster
from stand_ins import stand_in

CLUSTERD = "tests.mindcluster.clusterd_stand_in"
AT = "0.0.0.0:8899"
STRATEGY = "retry,recover-in-place,recover"


def requests(cluster, call):
    """What ClusterD was told by such calls."""
    return [line["request"] for line in cluster.lines() if line["call"] == call]


@pytest.mark.long
def test_a_pod_is_replaced_then_the_node_of_the_manager_dies(hosts, tmp_path, reference):
    machines = hosts(5)

    def told(call):
        return requests(cluster, call)

    def begun():
        """Whether it has a stream of signals since it was last told the result."""
        calls = [line["call"] for line in cluster.lines()]
        told = len(calls) - calls[::-1].index("ReportRecoverStatus")
        return "Subscribe" in calls[told:]

    with (
        stand_in(machines, 4, tmp_path / "told", CLUSTERD, STRATEGY, AT, "2") as cluster,
        Cluster(
            machines,
            tmp_path / "job",
            2,
            2,
            "steered.py",
            STEPS,
            strategy=STRATEGY,
            MINDX_SERVER_IP=machines.address(4),
        ) as job,
    ):
        job.standby(2, 3)
        job.ready(2)
        job.until("ClusterD had the job", lambda: told("Subscribe"))
        cluster.say("node 1")
        incident = job.repaired()
        assert (incident["strategy"], incident["ranks"]) == ("recover", [2, 3]), incident
        assert "ClusterD replaces its pod" in " ".join(incident["faults"])
        job.until("ClusterD knew the result", lambda: told("ReportRecoverStatus"))
        (result,) = told("ReportRecoverStatus")
        assert 'strategy: "recover"' in result and "code:" not in result, result
        # the pod's launcher ends as one that failed, so that the pod is replaced
        assert job.launchers[1].wait(30) == 1
        cluster.say("mended")  # the next pod is elsewhere
        job.emptied(1)
        job.trains()
        machines.signal(0, 9)
        incident = job.repaired()
        assert incident["ranks"] == [0, 1], incident
        job.until(
            "the next manager had reported to ClusterD and been answered",
            lambda: len(told("ReportRecoverStatus")) == 2,
        )
        job.until("ClusterD had begun anew", begun)
        job.trains()
        cluster.say("fault 2:0")  # its process does not report it
        incident = job.repaired()
        assert (incident["strategy"], incident["ranks"]) == ("recover-in-place", [2]), incident
        result = job.end(0, 1)
    training.assert_equal(result, reference, 4)


@pytest.mark.long
def test_two_pods_fail_one_after_the_other(hosts, tmp_path, reference):
    """As with a switch or a power strip: the second while the first is being replaced, of which
    ClusterD takes no notice then. Both leave the job."""
    machines = hosts(7)

    def told(call):
        return requests(cluster, call)

    with (
        stand_in(machines, 6, tmp_path / "told", CLUSTERD, "recover", AT, "1") as cluster,
        Cluster(
            machines,
            tmp_path / "job",
            4,
            1,
            "steered.py",
            STEPS,
            strategy="recover-in-place,recover",
            MINDX_SERVER_IP=machines.address(6),
            TASKD_CLUSTERD_TIMEOUT="600",  # nothing may wait for it in vain
        ) as job,
    ):
        job.standby(4, 5)
        job.ready(2)
        job.until("ClusterD had the job", lambda: told("Subscribe"))
        cluster.say("node 1")
        job.until("it had asked for strategies", lambda: told("ReportRecoverStrategy"))
        cluster.say("node 2")
        job.until("both were replaced", lambda: {1, 2}.isdisjoint(map(job.host_of, range(4))))
        assert [job.launchers[host].wait(30) for host in (1, 2)] == [1, 1]
        job.trains()
        result = job.end(1, 2)
    training.assert_equal(result, reference, 4)


@pytest.mark.long
def test_a_pod_is_deleted_and_the_next_one_takes_its_place(hosts, tmp_path, reference):
    """Its launcher gets SIGTERM: nothing is saved, as ClusterD has the next pod come."""
    machines = hosts(4)
    with (
        stand_in(machines, 3, tmp_path / "told", CLUSTERD, "recover", AT, "2") as cluster,
        Cluster(
            machines,
            tmp_path / "job",
            2,
            2,
            "steered.py",
            STEPS,
            strategy=STRATEGY,
            MINDX_SERVER_IP=machines.address(3),
            TASKD_DUMP_PATH=str(tmp_path / "dump"),
        ) as job,
    ):
        job.trains()
        job.until("ClusterD had the job", lambda: requests(cluster, "Subscribe"))
        job.launchers[1].send_signal(signal.SIGTERM)
        job.standby(2)
        incident = job.repaired()
        assert (incident["strategy"], incident["ranks"]) == ("recover", [2, 3]), incident
        assert job.launchers[1].wait(30) != 0
        job.trains()
        result = job.end(1)
    training.assert_equal(result, reference, 4)
    assert not list(tmp_path.glob("dump/step-*"))

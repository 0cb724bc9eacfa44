"""Fault codes that a node's device-info has, from the file to the step that is repeated."""

from __future__ import annotations

import os
import signal
import time

import psutil
import pytest
import training

from tests.kubernetes.api_stand_in import Cluster, kubeconfig
from tests.mindcluster.device_info_stand_in import configmap, fault

STEPS = "100"


def put(directory, *faults, **more):
    for key, value in configmap(*faults, **more).items():
        (directory / f"{key}.new").write_text(value)
        (directory / f"{key}.new").replace(directory / key)


def start(tmp_path, **more):
    (tmp_path / "info").mkdir()
    put(tmp_path / "info")
    return training.start(
        tmp_path / "job",
        2,
        "steered.py",
        STEPS,
        TASKD_DEVICE_INFO=str(tmp_path / "info"),
        ASCEND_VISIBLE_DEVICES="4-7",
        **{"TASKD_FAULT_REPORTS": None, **more},
    )


def test_a_rank_s_process_waits_until_its_chip_has_been_reset(tmp_path, reference):
    with start(tmp_path) as job:
        job.trains()

        # RestartBusiness: the step is repeated, every process stays
        put(tmp_path / "info", fault("Ascend910-4", "80E01801", time=1))
        (incident,) = job.repaired()
        assert (incident["strategy"], incident["ranks"]) == ("retry", []), incident
        put(tmp_path / "info")

        # RestartNPU: until the code is gone there is no process; chip 2 is nobody's
        old = job.pid(1)
        put(tmp_path / "info", fault("Ascend910-5", "80C98001"), fault("Ascend910-2", "80C98001"))
        job.until("its process was gone", lambda: not psutil.pid_exists(old))
        put(tmp_path / "info", fault("Ascend910-5", "80C98001"), recovering="Ascend910-5")
        put(tmp_path / "info", recovering="Ascend910-5")
        time.sleep(1.0)  # for it to start a process too early
        assert len(job.incidents()) == 1
        put(tmp_path / "info")
        (incident,) = job.repaired()
        assert (incident["strategy"], incident["ranks"]) == ("recover-in-place", [1]), incident
        result = job.end()
    training.assert_equal(result, reference(2, "steered.py", STEPS), 2)
    assert [len(result.pids(rank)) for rank in range(2)] == [1, 2]
    assert "chip 2, which no rank of this job has" in result.log("agent*.log")


@pytest.mark.long
def test_the_reset_is_over_while_there_is_no_manager(tmp_path, reference):
    """The next one is told of it by the agent."""
    with start(tmp_path) as job:
        job.trains()
        old = job.pid(1)
        put(tmp_path / "info", fault("Ascend910-5", "80C98001"))
        job.until("its process was gone", lambda: not psutil.pid_exists(old))
        manager = job.manager()
        os.kill(manager, signal.SIGSTOP)
        put(tmp_path / "info")
        time.sleep(0.5)  # for the agent to report it
        os.kill(manager, signal.SIGKILL)
        (incident,) = job.repaired()
        assert (incident["strategy"], incident["ranks"]) == ("recover-in-place", [1]), incident
        result = job.end()
    training.assert_equal(result, reference(2, "steered.py", STEPS), 2)
    assert [len(result.pids(rank)) for rank in range(2)] == [1, 2]


@pytest.fixture
def cluster():
    made = Cluster()
    yield made
    made.close()


@pytest.mark.long
def test_by_the_kubernetes_api(tmp_path, reference, cluster):
    name = "mindx-dl-deviceinfo-node-1"
    cluster.pod("pod")
    cluster.config_map(name, configmap())
    with training.start(
        tmp_path / "job",
        2,
        "steered.py",
        STEPS,
        TASKD_KUBERNETES="on",
        TASKD_DEVICE_INFO="api-write",
        KUBECONFIG=str(kubeconfig(tmp_path / "kubeconfig", f"127.0.0.1:{cluster.port}")),
        POD_NAME="pod",
        NODE_NAME="node-1",
        ASCEND_VISIBLE_DEVICES="4-7",
        TASKD_FAULT_REPORTS=None,
    ) as job:
        job.trains()
        cluster.wait("it watches", lambda: ("watch", "configmaps", "") in cluster.asked)
        old = job.pid(1)
        cluster.config_map(name, configmap(fault("Ascend910-5", "80C98001")))
        job.until("its process was gone", lambda: not psutil.pid_exists(old))
        time.sleep(1.0)  # for it to start a process too early
        assert not job.incidents()
        cluster.config_map(name, configmap())
        (incident,) = job.repaired()
        assert (incident["strategy"], incident["ranks"]) == ("recover-in-place", [1]), incident
        result = job.end()
    training.assert_equal(result, reference(2, "steered.py", STEPS), 2)
    assert [len(result.pids(rank)) for rank in range(2)] == [1, 2]

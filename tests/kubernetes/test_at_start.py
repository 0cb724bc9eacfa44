"""What a job's own object says before the job begins, and what ClusterD needs beside it."""

from __future__ import annotations

import pytest

from taskd import settings
from taskd.manager.config import BadConfig, Config, parse
from taskd.settings import pod_info

CONFIG = {"job_id": "job", "node_nums": 2, "proc_per_node": 1}
STRATEGIES = {"recover-strategy": "retry,recover"}
LADDER = ("retry", "recover", "exit")


@pytest.fixture
def environ(environ, tmp_path):
    (tmp_path / "podinfo").mkdir()
    return {**environ, "TASKD_POD_INFO": str(tmp_path / "podinfo"), "TASKD_PROCESS_ENABLE": "on"}


def started(environ, under_way=False) -> Config:
    return parse(CONFIG, environ, under_way)


def test_the_pod_group_s_count(cluster, environ, tmp_path):
    cluster.pod("job-master-0", "group-7", job="train-pytorch")
    labels = {"pod_rescheduling": "on", "fault_retry_times": "4", "app": "x"}
    cluster.pod_group("group-7", STRATEGIES, **labels)
    (tmp_path / "podinfo" / "labels").write_text('fault-retry-times="1"')
    found = started(environ)
    assert found.ladder == LADDER and found.warnings == ()
    seen = {**environ, **found.variables}
    assert settings.retry_times(pod_info.environment(seen)) == 4
    assert settings.pod_rescheduling(pod_info.environment(seen))
    assert found.variables.keys() <= {v.name for v in pod_info.VARIABLES.values()}
    assert {verb for verb, _, _ in cluster.asked} == {"get"}


def test_a_variable_comes_first_and_what_is_followed_stays(cluster, environ):
    cluster.pod("job-master-0", "group-7")
    cluster.pod_group("group-7", STRATEGIES, subHealthyStrategy="graceExit")
    found = started({**environ, "TASKD_RECOVER_STRATEGY": "dump"})
    assert found.ladder == ("dump", "exit") and found.variables == {}


def test_without_a_pod_group_it_is_the_job_s(cluster, environ):
    cluster.pod("job-master-0", job="train-pytorch")
    job = {"metadata": {"name": "train-pytorch", "annotations": STRATEGIES}}
    cluster.put("mindxdl.gitee.com", "ascendjobs", job)
    assert started(environ).ladder == LADDER


def test_a_value_that_is_not_allowed(cluster, environ):
    cluster.pod("job-master-0", "group-7")
    cluster.pod_group("group-7", STRATEGIES, fault_retry_times="often")
    with pytest.raises(BadConfig, match="fault-retry-times='often'"):
        started(environ)
    assert started(environ, under_way=True).ladder == LADDER


@pytest.mark.parametrize("how", ["broken", "no rights", "no such pod"])
def test_an_api_that_does_not_say(cluster, environ, how):
    if how != "no such pod":
        cluster.pod("job-master-0")
    cluster.broken = 500 if how == "broken" else 0
    if how == "no rights":
        cluster.allowed = {}
    found = started({**environ, "TASKD_RECOVER_STRATEGY": "dump"})
    assert found.ladder == ("dump", "exit")
    (text,) = found.warnings
    assert text.startswith("the job's labels cannot be read by the Kubernetes API: ")


# -- ClusterD's ConfigMap --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("job", "there", "more", "warned"),
    [
        ("train-pytorch", False, {}, True),
        ("train-pytorch", True, {}, False),
        ("another", False, {}, False),  # the Role does not name it: it cannot be seen
        ("", False, {}, False),
        ("train-pytorch", False, {"TASKD_CLUSTERD": "off"}, False),
    ],
)
def test_reset_config(cluster, environ, job, there, more, warned):
    cluster.pod("job-master-0", "group-7", job=job)
    cluster.pod_group("group-7", STRATEGIES)
    if there:
        cluster.config_map(f"reset-config-{job}", {"reset.json": "{}"})
    found = started({**environ, "MINDX_SERVER_IP": "10.0.0.1", **more})
    assert bool(found.warnings) is warned
    for text in found.warnings:
        assert "there is no ConfigMap reset-config-train-pytorch in namespace train" in text
        assert "kubectl create configmap reset-config-train-pytorch -n train --from" in text


def test_the_next_manager_does_not_say_it_again(cluster, environ):
    cluster.pod("job-master-0", "group-7", job="train-pytorch")
    cluster.pod_group("group-7", STRATEGIES)
    found = started({**environ, "MINDX_SERVER_IP": "10.0.0.1"}, under_way=True)
    assert found.warnings == () and found.ladder == LADDER


# -- labels that nobody sees -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "labels", "said"),
    [
        ({}, "", True),
        ({}, 'app="x"', True),
        ({}, 'fault-scheduling="grace"', False),
        ({"TASKD_POD_RESCHEDULING": "off"}, "", False),
        ({"MINDX_SERVER_IP": ""}, "", False),  # no pod of the operator's
    ],
)
def test_a_job_whose_labels_are_not_in_its_pods_says_so(tmp_path, more, labels, said):
    (tmp_path / "labels").write_text(labels)
    environ = {"TASKD_POD_INFO": str(tmp_path), "MINDX_SERVER_IP": "10.0.0.1"}
    environ |= {"HIGH_AVAILABILITY": "retry", "TASKD_PROCESS_ENABLE": "on", **more}
    told = [text for text in started(environ).warnings if "none of the labels" in text]
    assert bool(told) is said
    assert all("pod-rescheduling" in text and str(tmp_path) in text for text in told)

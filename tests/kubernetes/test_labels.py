"""The labels of the job itself, which change while it runs."""

from __future__ import annotations

import pytest

from taskd.kubernetes import lease
from taskd.manager.following import kubernetes
from taskd.manager.history.continuity import Continuity, label_key
from taskd.messages import from_agent, from_operator, to_agent
from taskd.mindcluster.sub_healthy import STRATEGIES


@pytest.fixture
def manage(start, environ, tmp_path):
    """A manager of a job of one rank; `pod`: the labels that its pod was made with."""

    def make(pod=None, **more):
        kept = Continuity(tmp_path / "log")
        line = kubernetes.make(environ, "job", kept, STRATEGIES, pod or {}, kept.read())
        manager = start(1, continuity=kept, kubernetes=line, **more)
        return manager, manager.protected(1)[0]

    return make


def test_the_label_of_the_pod_group_pauses_recovery(cluster, manage):
    cluster.pod("job-master-0", "job-7")
    cluster.pod_group("job-7", process_recover_enable="on")
    manager, agent = manage({"process-recover-enable": "on"})
    job = manager.job
    for value, repairs in [("pause", False), ("on", True), ("off", False)]:
        cluster.pod_group("job-7", process_recover_enable=value, app="x")
        manager.wait(lambda wanted=repairs: job.repairs is wanted)
    agent.send(from_agent.RankDied(1, 0, "was killed by SIGKILL"))
    assert agent.expect(to_agent.GiveUp)
    assert {verb for verb, _, _ in cluster.asked} <= {"get", "watch", "list", "create", "update"}


def test_a_sub_healthy_node_is_named_in_the_lease(cluster, manage):
    cluster.pod("job-master-0")
    manager, agent = manage()
    agent.send(from_agent.DevicesAt(0, "node-1", (0, 1)))
    manager.serves(agent)
    manager.ask(from_operator.NodeSubHealthy, 0, "its fan is slow")
    where = "coordination.k8s.io", "leases", lease.name("job")

    def notes():
        return (cluster.objects.get(where) or {"metadata": {}})["metadata"].get("annotations") or {}

    cluster.wait("it is marked", lambda: "its fan is slow" in notes().get(lease.SUB_HEALTHY, ""))
    assert "node-1" in notes()[lease.SUB_HEALTHY]


def test_what_changed_before_it_looked(cluster, manage):
    cluster.pod("job-master-0", "job-7")
    cluster.pod_group("job-7", process_recover_enable="off", subHealthyStrategy="graceExit")
    manager, _ = manage({"process-recover-enable": "on"})
    job = manager.job
    manager.wait(lambda: not job.repairs)
    manager.wait(lambda: job.sub_healthy == "save")


def test_the_next_manager_sees_no_change_where_there_was_none(cluster, manage, tmp_path, caplog):
    kept = Continuity(tmp_path / "log")
    kept.keep(label_key("job"), "off")
    kept.close()
    cluster.pod("job-master-0", "job-7")
    cluster.pod_group("job-7", process_recover_enable="off")
    # an operator has turned it on since, and the pod's label is an old one
    manager, _ = manage({"process-recover-enable": "on"})
    cluster.wait("it watches", lambda: any(verb == "watch" for verb, _, _ in cluster.asked))
    assert manager.job.repairs


def test_an_api_that_is_away_comes_back(cluster, manage, monkeypatch, caplog):
    monkeypatch.setattr("taskd.kubernetes.watching.AGAIN", 0.05)
    cluster.pod("job-master-0", "job-7")
    cluster.pod_group("job-7", process_recover_enable="on")
    cluster.broken = 500
    manager, _ = manage({"process-recover-enable": "on"})
    cluster.wait("it has asked twice", lambda: len(cluster.asked) > 3)
    cluster.broken = 0
    cluster.pod_group("job-7", process_recover_enable="off")
    manager.wait(lambda: not manager.job.repairs)
    assert caplog.text.count("labels cannot be read") == 1


def test_a_watch_that_ends_begins_again(cluster, manage, monkeypatch):
    monkeypatch.setattr("taskd.kubernetes.watching.WATCH", 1)
    cluster.pod("job-master-0", "job-7")
    cluster.pod_group("job-7", process_recover_enable="on")
    manager, _ = manage({"process-recover-enable": "on"})

    def watched():
        return sum(verb == "watch" for verb, _, _ in cluster.asked)

    cluster.wait("it watches once more", lambda: watched() > 2)
    cluster.pod_group("job-7", process_recover_enable="off")
    manager.wait(lambda: not manager.job.repairs)


def test_without_rights_the_job_goes_on(cluster, manage, caplog):
    cluster.pod("job-master-0")
    cluster.allowed = {}
    manager, _ = manage()
    manager.wait(lambda: "role.yaml" in caplog.text)
    assert manager.job.repairs


def test_labels_that_only_the_pod_has(cluster, manage):
    """The job of an operator that copies none: its pods' labels count."""
    cluster.pod("job-master-0", "job-7")
    cluster.pod_group("job-7", app="x")
    manager, _ = manage({"process-recover-enable": "on", "subHealthyStrategy": "graceExit"})
    job = manager.job
    cluster.wait("it watches", lambda: any(verb == "watch" for verb, _, _ in cluster.asked))
    assert job.repairs
    cluster.pod_group("job-7", process_recover_enable="pause")
    manager.wait(lambda: not job.repairs)
    cluster.pod_group("job-7", process_recover_enable="on")
    manager.wait(lambda: job.repairs)
    cluster.pod_group("job-7")  # removed
    manager.wait(lambda: not job.repairs)


def test_the_label_is_left_to_the_next_manager_at_once(cluster, manage, tmp_path):
    cluster.broken = 500
    manager, _ = manage({"process-recover-enable": "on"})
    manager.wait(lambda: Continuity(tmp_path / "log").read().get(label_key("job")) == "on")

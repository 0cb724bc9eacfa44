"""The Lease of a job's manager."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone

import pytest
from kubernetes import client

from taskd.kubernetes import lease
from taskd.kubernetes.lease import Lease
from taskd.manager import whereabouts
from taskd.messages.to_agent import UnderWay

HERE, THERE = "10.0.0.1:9601", "192.0.2.7:9601"
NAME = lease.name("job")


@pytest.fixture
def make(way):
    made = []

    def one():
        made.append(Lease(way, "job"))
        return made[-1]

    yield one
    for each in made:
        each.close()


def held(cluster, holder):
    cluster.wait(
        f"{holder} holds it", lambda: (cluster.lease(NAME) or {}).get("holderIdentity") == holder
    )
    return cluster.lease(NAME)


def put(cluster, holder, term, age=0.0, **more):
    when = datetime.now(timezone.utc) - timedelta(seconds=age)
    spec = {
        "holderIdentity": holder,
        "leaseTransitions": term,
        "leaseDurationSeconds": lease.DURATION,
        "renewTime": when.isoformat().replace("+00:00", "Z"),
        **more,
    }
    metadata = {"name": NAME, "namespace": "train"}
    thing = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
    cluster.put("coordination.k8s.io", "leases", {**thing, "metadata": metadata, "spec": spec})


def tries(cluster, ours):
    """Have it asked for, once."""
    ours.keep(HERE, 1)
    cluster.wait("it has asked", lambda: cluster.asked)
    ours.close()
    ours._thread.join(10)


@pytest.mark.parametrize("job", ["job", "0a3c-17", "Job_1", "x" * 200, "-a", "a/b"])
def test_names_are_those_of_objects(job):
    name = lease.name(job)
    assert len(name) <= 80 and name == name.lower() and "/" not in name and "_" not in name
    assert lease.name(job + "1") != name


def test_a_manager_has_it_until_the_job_is_over(cluster, way, make):
    assert lease.holder(way, "job") is None
    ours = make()
    ours.keep(HERE, 1)
    assert held(cluster, HERE)["leaseTransitions"] == 1
    assert lease.holder(way, "job") == HERE
    ours.release()
    ours.close()
    assert lease.holder(way, "job") is None
    assert cluster.lease(NAME)["holderIdentity"] in ("", None)


def test_a_manager_that_is_stopped_leaves_it(cluster, way, make):
    ours = make()
    ours.keep(HERE, 1)
    held(cluster, HERE)
    ours.close()
    assert lease.holder(way, "job") == HERE


def test_the_next_manager_takes_it(cluster, make):
    put(cluster, THERE, 1)
    make().keep(HERE, 2)
    assert held(cluster, HERE)["leaseTransitions"] == 2


def test_an_earlier_manager_leaves_it_alone(cluster, make, caplog):
    put(cluster, THERE, 2)
    make().keep(HERE, 1)
    cluster.wait("it has asked", lambda: ("get", "leases", NAME) in cluster.asked)
    assert cluster.lease(NAME)["holderIdentity"] == THERE
    assert not [each for each in cluster.asked if each[0] == "update"]


FUTURE = {"renewTime": "9999-12-31T23:59:59.000000Z"}


@pytest.mark.parametrize("more", [{}, {"renewTime": None}, {"holderIdentity": ""}, FUTURE])
def test_one_that_has_expired_or_is_from_the_future_is_free(cluster, way, make, more):
    put(cluster, THERE, 7, lease.DURATION + 1, **more)
    assert lease.holder(way, "job") is None
    make().keep(HERE, 1)
    held(cluster, HERE)


def test_an_api_that_is_away_costs_a_warning(cluster, way, make, caplog):
    cluster.broken = 503
    tries(cluster, make())
    assert "is not renewed: 503" in caplog.text
    with pytest.raises(client.ApiException):
        lease.holder(way, "job")


def test_an_api_without_rights_names_the_remedy(cluster, make, caplog):
    cluster.allowed = {}
    tries(cluster, make())
    assert "403" in caplog.text and "role.yaml" in caplog.text


def test_something_else_under_that_name(cluster, way, make, caplog):
    metadata = {"name": NAME}
    cluster.put("coordination.k8s.io", "leases", {"metadata": metadata, "spec": None})
    tries(cluster, make())
    assert "it is no Lease" in caplog.text


def test_a_launcher_finds_the_manager(cluster, environ, monkeypatch):
    put(cluster, THERE, 2)
    monkeypatch.setattr(whereabouts.asking, "arrive", lambda *_: UnderWay(True, False))
    assert whereabouts.follow(environ, "job", None)
    assert environ["TASKD_MANAGER_ADDR"] == THERE


@pytest.mark.parametrize("broken", [401, 403, 500])
def test_a_launcher_goes_on_without_the_api(cluster, environ, caplog, broken):
    put(cluster, THERE, 2)
    cluster.broken = broken
    assert not whereabouts.follow(environ, "job", None)
    assert str(broken) in caplog.text


def test_no_api_at_all(environ, caplog):
    del environ["KUBECONFIG"]
    assert not whereabouts.follow(environ, "job", None)
    assert "service account" in caplog.text


@pytest.mark.parametrize("content", ["", "x", "[1]", "{a: b", "contexts: 3", "\x00"])
def test_a_kubeconfig_that_is_none(environ, tmp_path, caplog, content):
    (tmp_path / "kubeconfig").write_text(content)
    assert not whereabouts.follow(environ, "job", None)
    assert "the Kubernetes API is not used" in caplog.text


@pytest.mark.parametrize(
    "holder", ["a..b:9601", "ü" * 70 + ":9601", "x\0y:9601", "a" * 70 + ":9601"]
)
def test_a_holder_that_is_no_address(cluster, environ, holder):
    put(cluster, holder, 2)
    assert not whereabouts.follow(environ, "job", None)


def test_a_manager_of_the_same_term_leaves_it_alone(cluster, make):
    put(cluster, THERE, 1)
    ours = make()
    ours.keep(HERE, 1)
    cluster.wait("it has asked", lambda: ("get", "leases", NAME) in cluster.asked)
    ours.release()
    ours.close()
    assert cluster.lease(NAME)["holderIdentity"] == THERE


def marked(cluster):
    found = cluster.objects.get(("coordination.k8s.io", "leases", NAME), {"metadata": {}})
    notes = found["metadata"].get("annotations") or {}
    return json.loads(notes.get(lease.SUB_HEALTHY, "{}"))


def test_sub_healthy_nodes_are_in_an_annotation_until_the_job_is_over(cluster, make):
    put(cluster, THERE, 1)
    kept = {"node-1": "slow"}
    notes = {lease.SUB_HEALTHY: json.dumps(kept), "other": "stays"}
    cluster.objects["coordination.k8s.io", "leases", NAME]["metadata"]["annotations"] = notes
    ours = make()
    ours.keep(HERE, 2)
    ours.mark("node-2", "y" * 1000)
    cluster.wait("it is marked", lambda: len(marked(cluster)) == 2)
    assert marked(cluster) == {**kept, "node-2": "y" * lease.MOST_TEXT}
    ours.release()
    ours.close()
    found = cluster.objects["coordination.k8s.io", "leases", NAME]["metadata"]["annotations"]
    assert found == {"other": "stays"}


@pytest.mark.parametrize("damaged", ["{", "[]", "3", '{"node-1": 3}', "[" * 100_000])
def test_a_damaged_annotation_costs_itself(cluster, make, damaged):
    put(cluster, THERE, 1)
    notes = {lease.SUB_HEALTHY: damaged}
    cluster.objects["coordination.k8s.io", "leases", NAME]["metadata"]["annotations"] = notes
    ours = make()
    ours.mark("node-2", "slow")
    ours.keep(HERE, 2)
    held(cluster, HERE)
    assert marked(cluster) == {"node-2": "slow"}


def test_no_more_nodes_than_an_annotation_can_have(cluster, make):
    ours = make()
    for number in range(lease.MOST_NODES + 1):
        ours.mark(f"node-{number}", "slow")
    ours.keep(HERE, 1)
    held(cluster, HERE)
    assert len(marked(cluster)) == lease.MOST_NODES and "node-0" not in marked(cluster)

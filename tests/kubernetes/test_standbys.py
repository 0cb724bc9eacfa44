"""A standby is asked for as ClusterD asks for one: by annotations of the node's pod."""

from __future__ import annotations

import pytest

from taskd.kubernetes.standbys import BACKUP, CREATE, OPERATOR, Standbys


@pytest.fixture
def standbys(way):
    made = Standbys(way)
    yield made
    made.close()


def pod(cluster, name, address, phase="Running"):
    cluster.put(
        "",
        "pods",
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "train", "annotations": {"mine": "stays"}},
            "status": {"podIP": address, "phase": phase},
        },
    )


def annotations(cluster, name):
    return cluster.objects[("", "pods", name)]["metadata"]["annotations"]


def test_it_is_asked_for_and_no_longer(cluster, standbys):
    pod(cluster, "job-worker-0", "10.0.0.2")
    pod(cluster, "job-worker-1", "10.0.0.3")
    pod(cluster, "earlier-worker-4", "10.0.0.3", "Succeeded")
    pod(cluster, "earlier-worker-5", "10.0.0.3", "Failed")
    standbys.wish("10.0.0.3", True)
    cluster.wait(
        "it is asked for",
        lambda: annotations(cluster, "job-worker-1") == {"mine": "stays", **CREATE},
    )
    assert annotations(cluster, "job-worker-0") == {"mine": "stays"}
    standbys.wish("10.0.0.3", False)
    cluster.wait(
        "it is not needed", lambda: annotations(cluster, "job-worker-1") == {"mine": "stays"}
    )


def test_the_pod_that_was_made_for_a_move_that_is_given_up(cluster, standbys):
    pod(cluster, "job-worker-1", "10.0.0.3")
    pod(cluster, "job-worker-1-backup", "10.0.0.4")
    annotations(cluster, "job-worker-1").update(CREATE)
    annotations(cluster, "job-worker-1")[BACKUP] = "job-worker-1-backup"
    standbys.wish("10.0.0.3", False)
    cluster.wait(
        "it is to be deleted",
        lambda: annotations(cluster, "job-worker-1-backup").get(OPERATOR) == "delete",
    )
    assert annotations(cluster, "job-worker-1") == {"mine": "stays"}


def test_an_address_that_no_pod_has(cluster, standbys, caplog):
    standbys.wish("10.0.0.9", True)
    standbys.close()
    assert "0 pods of namespace train have the address 10.0.0.9" in caplog.text


def test_without_the_right(cluster, standbys, caplog):
    pod(cluster, "job-worker-1", "10.0.0.3")
    cluster.allowed = {k: v for k, v in cluster.allowed.items() if "patch" not in k}
    standbys.wish("10.0.0.3", True)
    standbys.close()
    assert "403" in caplog.text and annotations(cluster, "job-worker-1") == {"mine": "stays"}

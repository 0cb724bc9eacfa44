"""Which object has a job's labels."""

from __future__ import annotations

import pytest

from taskd.kubernetes.objects import Object, labelled, marks, pod

OWNER = {
    "apiVersion": "mindxdl.gitee.com/v1",
    "kind": "AscendJob",
    "name": "job",
    "controller": True,
}


def of(annotations=None, owners=None):
    metadata = {"name": "p-0", "annotations": annotations, "ownerReferences": owners}
    return labelled({"metadata": metadata})


def test_the_pod_group_comes_first():
    found = of({"scheduling.k8s.io/group-name": "job-1"}, [OWNER])
    assert found == Object("scheduling.volcano.sh", "v1beta1", "podgroups", "job-1")


@pytest.mark.parametrize(
    ("api", "kind", "plural"),
    [
        ("mindxdl.gitee.com/v1", "AscendJob", "ascendjobs"),
        ("batch.volcano.sh/v1alpha1", "Job", "jobs"),
        ("kubeflow.org/v1", "PyTorchJob", "pytorchjobs"),
    ],
)
def test_then_the_job_that_owns_the_pod(api, kind, plural):
    group, version = api.split("/")
    found = of(owners=[{**OWNER, "apiVersion": api, "kind": kind}])
    assert found == Object(group, version, plural, "job")


@pytest.mark.parametrize(
    "owner",
    [
        {**OWNER, "controller": False},
        {**OWNER, "kind": "ReplicaSet", "apiVersion": "apps/v1"},
        {**OWNER, "kind": "Job", "apiVersion": "batch/v1"},  # not Volcano's
        {},
    ],
)
def test_else_the_pod(owner):
    assert of(owners=[owner]) == pod("p-0")


def test_marks_of_an_object_without_any():
    assert marks({}) == ({}, {}) == marks({"metadata": {"labels": None}})
    assert marks({"metadata": {"labels": {"a": 1}}}) == ({"a": "1"}, {})

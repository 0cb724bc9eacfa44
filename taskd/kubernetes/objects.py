"""Which object of the cluster has a job's labels, as its pods say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

# Volcano's annotation of each pod, the name of its pod group
GROUP = "scheduling.k8s.io/group-name"
# the jobs whose operators copy their labels to pods, by kind: how the API names many of them
PLURALS = {
    ("mindxdl.gitee.com", "AscendJob"): "ascendjobs",
    ("batch.volcano.sh", "Job"): "jobs",
    ("kubeflow.org", "PyTorchJob"): "pytorchjobs",
}


class Object(NamedTuple):
    """`group` is "" for a pod."""

    group: str
    version: str
    plural: str
    name: str

    def __str__(self) -> str:
        return f"{self.plural}{self.group and '.'}{self.group} {self.name}"


def pod(name: str) -> Object:
    return Object("", "v1", "pods", name)


def reset_config(job: str) -> Object:
    """The ConfigMap that ClusterD writes its state of an AscendJob into."""
    return Object("", "v1", "configmaps", f"reset-config-{job}")


def ascend_job(found: Mapping[str, Any]) -> str | None:
    """The name of the AscendJob that owns the pod `found`."""
    owner = _controller(found)
    return str(owner.get("name")) if owner.get("kind") == "AscendJob" else None


def _controller(found: Mapping[str, Any]) -> Mapping[str, Any]:
    """The owner that made it; one at most is called so."""
    owners = (found.get("metadata") or {}).get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), {})


def labelled(found: Mapping[str, Any]) -> Object:
    """The object whose labels count, of the pod `found`: its pod group, where ClusterD looks too;
    else the job that owns it; else the pod itself."""
    metadata = found.get("metadata") or {}
    name = (metadata.get("annotations") or {}).get(GROUP)
    if name:
        return Object("scheduling.volcano.sh", "v1beta1", "podgroups", str(name))
    owner = _controller(found)
    group, _, version = str(owner.get("apiVersion")).partition("/")
    if (plural := PLURALS.get((group, str(owner.get("kind"))))) is not None:
        return Object(group, version, plural, str(owner.get("name")))
    return pod(str(metadata.get("name")))


def marks(found: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Its labels and its annotations."""
    metadata = found.get("metadata") or {}
    labels, annotations = (metadata.get(name) or {} for name in ("labels", "annotations"))
    return (
        {str(k): str(v) for k, v in labels.items()},
        {str(k): str(v) for k, v in annotations.items()},
    )

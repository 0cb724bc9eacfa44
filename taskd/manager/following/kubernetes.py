"""The manager's connection to the Kubernetes API, if TASKD_KUBERNETES is on, opened once this
manager is in charge. It holds the job's Lease and follows the labels of the job's pod group; a
pod's labels never change after it was made."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from taskd import settings
from taskd.manager.following.pod_labels import Labels
from taskd.manager.following.sources import Feed
from taskd.manager.history.continuity import Continuity, label_key
from taskd.settings import documented, pod_info
from taskd.settings.parameter import Where

if TYPE_CHECKING:
    from taskd.kubernetes.access import Access
    from taskd.kubernetes.following import Following
    from taskd.kubernetes.lease import Lease
    from taskd.kubernetes.objects import Object
    from taskd.kubernetes.standbys import Standbys

NOT_FOUND = 404

log = logging.getLogger("taskd.manager")


class KubernetesConnection:
    """The base class does nothing, for a job that does not use the API."""

    descriptor = -1

    def in_charge(self, address: str, term: int) -> None:
        """This manager is in charge, of a job that has formed, and listens at `address`."""

    def sub_healthy(self, node: str, why: str) -> None:
        """A node of the job is sub-healthy, by its name or address."""

    def standby(self, address: str, wanted: bool) -> None:
        """Request a standby for the pod at `address`, or withdraw the request."""

    def over(self) -> None:
        """The job is over."""

    def poll(self, feed: Feed, now: float) -> None: ...

    def close(self) -> None: ...


class Open(KubernetesConnection):
    """`known`: the labels that count as long as the object that is followed has never had them."""

    def __init__(
        self,
        following: Following,
        lease: Lease,
        standbys: Standbys,
        labels: Labels,
        known: Mapping[str, str],
    ) -> None:
        self._following, self._lease, self._labels = following, lease, labels
        self._standbys = standbys
        self._known = dict(known)
        self._begun = False
        self.descriptor = following.descriptor

    def in_charge(self, address: str, term: int) -> None:
        self._lease.keep(address, term)
        if not self._begun:
            self._begun = True
            self._labels.keep()
            self._following.start()

    def sub_healthy(self, node: str, why: str) -> None:
        self._lease.mark(node, why)

    def standby(self, address: str, wanted: bool) -> None:
        self._standbys.wish(address, wanted)

    def over(self) -> None:
        self._lease.release()

    def poll(self, feed: Feed, now: float) -> None:
        if (newest := self._following.newest()) is not None:
            labels, annotations = newest
            found = pod_info.taken(labels, Where.LABEL)
            found |= pod_info.taken(annotations, Where.ANNOTATION)
            for name in found:
                self._known.pop(name, None)
            self._labels.apply(self._known | found, feed, now)

    def close(self) -> None:
        self._following.close()
        self._lease.close()
        self._standbys.close()


def access(environ: Mapping[str, str]) -> Access | None:
    """Access to the API; None, with a warning, if it is not used or cannot be. Raises
    settings.BadSetting."""
    if not settings.kubernetes_api(environ):
        return None
    try:
        from taskd.kubernetes.access import NotReachable, find
    except ImportError as error:
        log.warning(
            "the Kubernetes API is not used: %s; pip install kubernetes, or TASKD_KUBERNETES=off",
            error,
        )
        return None
    try:
        return find(environ)
    except NotReachable as error:
        log.warning("the Kubernetes API is not used: %s", error)
        return None


def at_start(environ: Mapping[str, str], under_way: bool) -> tuple[dict[str, str], list[str]]:
    """Before the job begins: the variables that the labels and annotations of its own object set
    (those of a pod may be fewer), but for those that are followed; and warnings. Raises
    settings.BadSetting."""
    if (way := access(environ)) is None:
        return {}, []
    from taskd.kubernetes import access as api
    from taskd.kubernetes import objects

    try:
        pod = way.get(objects.pod(way.pod))
        wanted = objects.labelled(pod)
        labels, annotations = objects.marks(pod if wanted.plural == "pods" else way.get(wanted))
    except Exception as error:  # whatever the client raises, the job begins with its pod's
        why = api.describe(error)
        return {}, [f"the job's labels cannot be read by the Kubernetes API: {why}"]
    found = pod_info.taken(labels, Where.LABEL) | pod_info.taken(annotations, Where.ANNOTATION)
    found.pop(documented.SUB_HEALTHY.name, None)
    made = pod_info.set_by(pod_info.usable(environ, under_way, found), environ)
    job = objects.ascend_job(pod)
    if under_way or job is None or settings.clusterd_address(environ) is None:
        return made, []
    return made, _without_reset_config(way, objects.reset_config(job))


def _without_reset_config(way: Access, wanted: Object) -> list[str]:
    """A warning, if ClusterD will not find it."""
    from taskd.kubernetes import access as api

    try:
        way.get(wanted)
    except Exception as error:
        if getattr(error, "status", None) != NOT_FOUND:
            log.info("whether there is a ConfigMap %s: %s", wanted.name, api.describe(error))
            return []
        return [
            f"there is no ConfigMap {wanted.name} in namespace {way.namespace}: ClusterD gives up"
            " each fault of this job without it. Create it (examples/kubernetes/ascendjob-*.yaml),"
            f" or: kubectl create configmap {wanted.name} -n {way.namespace}"
            """ --from-literal=reset.json='{"status": "initialize"}'"""
        ]
    return []


def make(
    environ: Mapping[str, str],
    job: str,
    continuity: Continuity,
    sub_healthy: Mapping[str, str],
    pod: Mapping[str, str],
    known: Mapping[str, object],
) -> KubernetesConnection:
    """`sub_healthy`: see Labels. `pod`: the labels of this pod, those of the job when the pod was
    made. `known`: what the previous manager has left. Raises settings.BadSetting."""
    if (way := access(environ)) is None:
        return KubernetesConnection()
    from taskd.kubernetes.following import Following
    from taskd.kubernetes.lease import Lease
    from taskd.kubernetes.standbys import Standbys

    if isinstance(last := known.get(label_key(job)), str):
        pod = {**pod, documented.PROCESS_RECOVER_ENABLE.name: last}
    # "" is a label that was removed; a missing key, one that was never read
    labels = Labels(job, continuity, sub_healthy, pod, "")
    return Open(Following(way), Lease(way, job), Standbys(way), labels, pod)

"""Asks Ascend Operator for a pod beside that of a node that is to move, as ClusterD does: by two
annotations of the node's pod. The new pod's launcher becomes a standby. Where the move is given up,
the operator is asked to delete that pod.

The Role is in examples/kubernetes/role-standbys.yaml. Without it, one warning says so.
"""

from __future__ import annotations

import logging
import queue
import threading
from typing import Any

from kubernetes import client

from taskd.kubernetes import access
from taskd.kubernetes.access import CONNECT, MERGE, READ, Access

IN_FLOW, OPERATOR = "inHotSwitchFlow", "needOperatorOpe"
BACKUP = "backupNewPodName"  # the operator's, on the node's pod: the pod that it has made
CREATE = {IN_FLOW: "true", OPERATOR: "create"}
MOST = 1000  # wishes that wait

log = logging.getLogger("taskd.manager")


class Standbys:
    """In a thread: an unreachable API blocks nothing."""

    def __init__(self, way: Access) -> None:
        self._way = way
        # the address of a node's pod, and whether a pod is wanted beside it; None: the end
        self._wishes: queue.Queue[tuple[str, bool] | None] = queue.Queue(MOST)
        self._thread: threading.Thread | None = None

    def wish(self, address: str, wanted: bool) -> None:
        """Never waits."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="taskd standbys", daemon=True)
            self._thread.start()
        try:
            self._wishes.put_nowait((address, wanted))
        except queue.Full:
            log.warning("a standby is not asked for: %d requests wait already", MOST)

    def close(self) -> None:
        if self._thread is not None:
            self._wishes.put(None)
            self._thread.join(CONNECT)

    # -- the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        while (wish := self._wishes.get()) is not None:
            try:
                self._ask(*wish)
            except Exception as error:  # whatever the client raises, the next one is tried
                log.warning(
                    "no standby is asked for beside the pod at %s: %s",
                    wish[0],
                    access.describe(error),
                )

    def _ask(self, address: str, wanted: bool) -> None:
        api, limit = client.CoreV1Api(self._way.api), (CONNECT, READ)
        listed = api.list_namespaced_pod(
            self._way.namespace, field_selector=f"status.podIP={address}", _request_timeout=limit
        ).items
        # on the host's network a finished pod has the address of the one after it
        over = ("Succeeded", "Failed")
        found = [pod for pod in listed if not (pod.status and pod.status.phase in over)]
        if len(found) != 1:
            log.warning(
                "no standby is asked for: %d pods of namespace %s have the address %s; POD_IP of"
                " each pod must be its own",
                len(found),
                self._way.namespace,
                address,
            )
            return
        pod = found[0].metadata
        name, noted = str(pod and pod.name), (pod and pod.annotations) or {}
        self._mark(api, name, dict(CREATE) if wanted else dict.fromkeys((*CREATE, BACKUP)))
        log.info("a standby for pod %s is %s", name, "asked for" if wanted else "not needed")
        if not wanted and (backup := noted.get(BACKUP)):
            self._mark(api, backup, {OPERATOR: "delete"})
            log.info("pod %s, made for it, is to be deleted", backup)

    def _mark(self, api: client.CoreV1Api, name: str, marks: dict[str, Any]) -> None:
        api.patch_namespaced_pod(
            name,
            self._way.namespace,
            {"metadata": {"annotations": marks}},
            _request_timeout=(CONNECT, READ),
            _content_type=MERGE,
        )

"""Follows the ConfigMaps of device-info, in a thread.

One list and one watch for all nodes of the cluster, by the label that ClusterD reads them by: a
watch for each node of the job would be a connection each, and a field selector names one object
alone. What the nodes of other jobs have is kept as it came and not read, so that a node that joins
the job is known at once.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Collection, Mapping
from typing import Any

from kubernetes import client, watch

from taskd.kubernetes import access, watching
from taskd.kubernetes.access import Access

SYSTEM = "kube-system"
LABEL = "mx-consumer-cim=true"
PREFIX = "mindx-dl-deviceinfo-"
PAGE = 100  # objects in one answer; each may have 1 MiB
GONE = 410  # the API no longer knows what has changed since then

log = logging.getLogger("taskd.manager")

Data = Mapping[str, str]


class ConfigMaps(watching.Watching):
    """`want` says of which nodes; `newest` has what is new about them."""

    def __init__(self, way: Access, keys: Collection[str]) -> None:
        super().__init__(way, "taskd device-info", "the ConfigMaps of device-info")
        self._keys = keys
        self._known_lock = threading.Lock()
        self._known: dict[str, Data] = {}  # by node
        self._version: str | None = None  # up to which they are known
        self._wanted: frozenset[str] = frozenset()
        self._given: dict[str, Data] = {}
        self._missed: set[str] = set()
        self._begun = self._listed = False

    def want(self, nodes: Collection[str]) -> None:
        """Follow these nodes from now on."""
        with self._known_lock:
            self._wanted = frozenset(nodes)
        if not self._begun:
            self._begun = True
            self.start()
        self._wake()

    def newest(self) -> dict[str, Data]:
        """What is new. Called when the descriptor is readable."""
        self._clear()
        with self._known_lock:
            found = {node: self._known[node] for node in self._wanted & self._known.keys()}
            absent = self._wanted - self._known.keys() if self._listed else frozenset()
        new = {node: data for node, data in found.items() if self._given.get(node) != data}
        self._given |= new
        for node in sorted(absent - self._missed):
            kept = "its last content stays in force" if node in self._given else "nothing is known"
            log.warning("there is no ConfigMap %s%s with %s; %s", PREFIX, node, LABEL, kept)
        self._missed = set(absent)
        return new

    # -- the thread --------------------------------------------------------------------------------

    def _follow(self) -> None:
        if self._version is None:
            self._list()
        changes = watch.Watch(return_type="object").stream(
            self._api.list_namespaced_config_map,
            SYSTEM,
            label_selector=LABEL,
            resource_version=self._version,
            timeout_seconds=watching.WATCH,
            _request_timeout=(access.CONNECT, watching.SILENCE),
        )
        try:
            for change in changes:
                if self._over.is_set():
                    return
                self._take(change["type"], change["raw_object"])
        except client.ApiException as error:
            self._version = None
            if error.status != GONE:
                raise
        except BaseException:
            self._version = None
            raise

    @property
    def _api(self) -> Any:
        return client.CoreV1Api(self._way.api)

    def _list(self) -> None:
        found: dict[str, Data] = {}
        more = ""
        while True:
            answer = self._api.list_namespaced_config_map(
                SYSTEM,
                label_selector=LABEL,
                limit=PAGE,
                **({"_continue": more} if more else {}),
                _preload_content=False,
                _request_timeout=(access.CONNECT, access.READ),
            )
            page = json.loads(answer.data)
            for each in page["items"]:
                if (named := self._named(each)) is not None:
                    found[named] = self._data(each)
            metadata = page["metadata"]
            more = metadata.get("continue") or ""
            if not more:
                break
        version = str(metadata["resourceVersion"])
        with self._known_lock:
            self._known, self._listed = found, True
        self._version = version
        log.info("following %d ConfigMaps of device-info in namespace %s", len(found), SYSTEM)
        self._wake()

    def _take(self, kind: str, found: Mapping[str, Any]) -> None:
        node = self._named(found)
        self._version = str(found["metadata"]["resourceVersion"])
        if node is None:
            return
        with self._known_lock:
            if kind == "DELETED":
                self._known.pop(node, None)
            elif kind in ("ADDED", "MODIFIED"):
                self._known[node] = self._data(found)
            wanted = node in self._wanted
        if wanted:
            self._wake()

    @staticmethod
    def _named(found: Mapping[str, Any]) -> str | None:
        """The node whose device-info it is."""
        name = str(found["metadata"]["name"])
        return name.removeprefix(PREFIX) if name.startswith(PREFIX) else None

    def _data(self, found: Mapping[str, Any]) -> Data:
        data = found.get("data") or {}
        return {key: str(data[key]) for key in self._keys if key in data}

"""Follows the labels and annotations of the job, in a thread."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from kubernetes import watch

from taskd.kubernetes import access, objects, watching
from taskd.kubernetes.access import Access
from taskd.kubernetes.objects import Object

Marks = tuple[dict[str, str], dict[str, str]]  # labels, annotations

log = logging.getLogger("taskd.manager")


class Following(watching.Watching):
    """`newest` has the labels and annotations once they are known."""

    def __init__(self, way: Access) -> None:
        super().__init__(way, "taskd labels", "the job's labels")
        self._newest: Marks | None = None

    def newest(self) -> Marks | None:
        """None as long as nothing is known. Called when the descriptor is readable."""
        self._clear()
        return self._newest

    # -- the thread --------------------------------------------------------------------------------

    def _follow(self) -> None:
        wanted = objects.labelled(self._way.get(objects.pod(self._way.pod)))
        found = self._way.get(wanted)
        self._take(found, wanted)
        call, arguments = self._way.lister(wanted)
        changes = watch.Watch().stream(
            call,
            *arguments,
            field_selector=f"metadata.name={wanted.name}",
            resource_version=found["metadata"]["resourceVersion"],
            timeout_seconds=watching.WATCH,
            _request_timeout=(access.CONNECT, watching.SILENCE),
        )
        for change in changes:
            if self._over.is_set():
                return
            if change["type"] == "MODIFIED":
                self._take(change["raw_object"], wanted)

    def _take(self, found: Mapping[str, object], wanted: Object) -> None:
        marks = objects.marks(found)
        if marks == self._newest:
            return
        if self._newest is None:
            log.info("following the labels of %s in namespace %s", wanted, self._way.namespace)
        self._newest = marks
        self._wake()

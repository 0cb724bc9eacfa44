"""Follows the labels and annotations of the job, in a thread."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Mapping

from kubernetes import watch

from taskd.kubernetes import access, objects
from taskd.kubernetes.access import Access
from taskd.kubernetes.objects import Object

# seconds that the API keeps one request open; a connection that was lost without a word is noticed
# when it has been silent for longer
WATCH, SILENCE = 60, 75.0
# seconds between two attempts: the first, and the longest
AGAIN, AGAIN_AT_MOST = 1.0, 30.0

Marks = tuple[dict[str, str], dict[str, str]]  # labels, annotations

log = logging.getLogger("taskd.manager")


class Following:
    """`newest` has the labels and annotations once they are known; `descriptor` becomes readable
    when they have changed."""

    def __init__(self, way: Access) -> None:
        self._way = way
        self._newest: Marks | None = None
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()  # of the descriptor
        self._over = threading.Event()
        self._warned = False
        # a daemon: it may be in a call when the process ends
        self._thread = threading.Thread(target=self._run, name="taskd labels", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        with self._lock:
            os.close(self.descriptor)
            self.descriptor = -1

    def newest(self) -> Marks | None:
        """None as long as nothing is known. Called when the descriptor is readable."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.descriptor)
        return self._newest

    # -- the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        pause = AGAIN
        while not self._over.is_set():
            try:
                self._follow(objects.labelled(self._way.get(objects.pod(self._way.pod))))
            except Exception as error:  # whatever the client raises, it is tried again
                self._warn(access.told(error))
                self._over.wait(pause)
                pause = min(2 * pause, AGAIN_AT_MOST)
            else:
                pause = AGAIN
                self._warned = False
                self._over.wait(AGAIN)  # an API that ends each request at once is not flooded

    def _follow(self, wanted: Object) -> None:
        """Until the API ends the request."""
        found = self._way.get(wanted)
        self._take(found, wanted)
        call, arguments = self._way.lister(wanted)
        changes = watch.Watch().stream(
            call,
            *arguments,
            field_selector=f"metadata.name={wanted.name}",
            resource_version=found["metadata"]["resourceVersion"],
            timeout_seconds=WATCH,
            _request_timeout=(access.CONNECT, SILENCE),
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
        with self._lock:
            if self.descriptor >= 0:
                os.eventfd_write(self.descriptor, 1)

    def _warn(self, why: str) -> None:
        if not self._warned and not self._over.is_set():
            self._warned = True
            log.warning("the job's labels cannot be read from the Kubernetes API: %s", why)

"""A thread that follows objects of the API; a descriptor signals news. An unreachable API costs one
warning and is retried later."""

from __future__ import annotations

import contextlib
import logging
import os
import threading

from taskd.kubernetes import access
from taskd.kubernetes.access import Access

# seconds that the API keeps one request open; a connection that was lost silently is noticed
# when nothing has come for longer
WATCH, SILENCE = 60, 75.0
# seconds between two attempts: the first, and the longest
AGAIN, AGAIN_AT_MOST = 1.0, 30.0

log = logging.getLogger("taskd.manager")


class Watching:
    """`descriptor` becomes readable when there is something new. `what`: is followed, in words."""

    def __init__(self, way: Access, name: str, what: str) -> None:
        self._way, self._what = way, what
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()  # of the descriptor
        self._over = threading.Event()
        self._warned = False
        # a daemon: it may be in a call when the process ends
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        with self._lock:
            os.close(self.descriptor)
            self.descriptor = -1

    def _clear(self) -> None:
        """The news are taken. Called when the descriptor is readable."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.descriptor)

    # -- the thread --------------------------------------------------------------------------------

    def _follow(self) -> None:
        """Until the API ends the request."""
        raise NotImplementedError

    def _wake(self) -> None:
        with self._lock:
            if self.descriptor >= 0:
                os.eventfd_write(self.descriptor, 1)

    def _run(self) -> None:
        pause = AGAIN
        while not self._over.is_set():
            try:
                self._follow()
            except Exception as error:  # whatever the client raises, it is tried again
                self._warn(access.describe(error))
                self._over.wait(pause)
                pause = min(2 * pause, AGAIN_AT_MOST)
            else:
                pause = AGAIN
                self._warned = False
                self._over.wait(AGAIN)  # an API that ends each request at once is not flooded

    def _warn(self, why: str) -> None:
        if not self._warned and not self._over.is_set():
            self._warned = True
            log.warning("%s cannot be read from the Kubernetes API: %s", self._what, why)

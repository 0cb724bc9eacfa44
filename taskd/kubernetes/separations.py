"""Writes the names of chips that taskd has separated into ManuallySeparateNPU of their nodes'
device-info, in a thread.

A name is added, never removed: deleting one is an operator's decision. The patch has the version of
the object that was read: the API refuses it where that has changed, and it is read again.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping
from typing import Any

from kubernetes import client

from taskd.kubernetes import access, watching
from taskd.kubernetes.access import CONNECT, MERGE, READ, Access
from taskd.kubernetes.configmaps import PREFIX, SYSTEM

KEY = "ManuallySeparateNPU"
LAST_WORDS = 2 * (CONNECT + READ)  # seconds; an object is read, and patched
ATTEMPTS = 5  # in a row, at an object that others change
CHANGED = 409  # it is another one by now

log = logging.getLogger("taskd.manager")

Chips = Mapping[str, frozenset[str]]  # names of chips, by node


class Separations:
    """`want`: these names are to be there."""

    def __init__(self, way: Access) -> None:
        self._way = way
        self._wanted: Chips = {}
        self._written: set[tuple[str, str]] = set()
        self._changed = threading.Event()
        self._over = False
        self._warned = ""
        self._thread: threading.Thread | None = None

    def want(self, chips: Chips) -> None:
        self._wanted = dict(chips)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="taskd separated", daemon=True)
            self._thread.start()
        self._changed.set()

    def close(self) -> None:
        """What has just been asked for is still written: a separation may have ended the job."""
        self._over = True
        self._changed.set()
        if self._thread is not None:
            self._thread.join(LAST_WORDS)

    # -- the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        pause = 0.0
        while True:
            self._changed.wait(pause or None)
            self._changed.clear()
            over = self._over  # before what is wanted is read: nothing is asked for after it
            failed = [node for node, chips in self._wanted.items() if not self._done(node, chips)]
            if over:
                return
            longer = min(max(2 * pause, watching.AGAIN), watching.AGAIN_AT_MOST)
            pause = longer if failed else 0.0

    def _done(self, node: str, chips: frozenset[str]) -> bool:
        chips = frozenset(chip for chip in chips if (node, chip) not in self._written)
        if not chips:
            return True
        try:
            self._add(node, chips)
        except Exception as error:  # whatever the client raises, it is tried again
            if (why := access.describe(error)) != self._warned:
                self._warned = why
                log.warning(
                    "%s cannot be added to %s of %s%s: %s",
                    ", ".join(sorted(chips)),
                    KEY,
                    PREFIX,
                    node,
                    why,
                )
            return False
        self._warned = ""
        self._written |= {(node, chip) for chip in chips}
        return True

    def _add(self, node: str, chips: frozenset[str]) -> None:
        """Raises what the client raises."""
        api: Any = client.CoreV1Api(self._way.api)
        limit = CONNECT, READ
        for attempt in range(ATTEMPTS):
            answer = api.read_namespaced_config_map(
                PREFIX + node, SYSTEM, _preload_content=False, _request_timeout=limit
            )
            found = json.loads(answer.data)
            before = (found.get("data") or {}).get(KEY, "")
            if (names := added(before, chips)) == before:
                return
            version = {"resourceVersion": found["metadata"]["resourceVersion"]}
            try:
                api.patch_namespaced_config_map(
                    PREFIX + node,
                    SYSTEM,
                    {"metadata": version, "data": {KEY: names}},
                    _request_timeout=limit,
                    _content_type=MERGE,
                )
            except client.ApiException as error:
                if error.status != CHANGED or attempt == ATTEMPTS - 1:
                    raise
            else:
                log.warning("%s added to %s of %s%s", ", ".join(sorted(chips)), KEY, PREFIX, node)
                return


def added(before: str, chips: frozenset[str]) -> str:
    """The list of names `before` with `chips` added; as it was if they are all there."""
    there = [name.strip() for name in before.split(",") if name.strip()]
    missing = sorted(chips - set(there))
    return ",".join([*there, *missing]) if missing else before

"""The Lease of a job: the address of the manager in charge.

The agents decide which manager is in charge (core/election); the Lease publishes it for later
launchers and managers. Its holder is the manager's address, and `leaseTransitions` is its term.
Another manager takes it if its term is higher, or once it has expired. Its annotation
`taskd/sub-healthy` has the nodes that were found sub-healthy while the job ran, and why.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import threading
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

from kubernetes import client

from taskd.kubernetes import access
from taskd.kubernetes.access import CONNECT, READ, Access

DURATION = 40  # seconds; the clocks of the nodes may differ by a part of it
RENEW = 10.0  # seconds between two renewals

SUB_HEALTHY = "taskd/sub-healthy"
MOST_NODES, MOST_TEXT = 200, 200  # an object's annotations may have 256 KiB

log = logging.getLogger("taskd.manager")


def name(job: str) -> str:
    """The name of the job's Lease."""
    plain = re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", job)
    return f"taskd-{job if plain else hashlib.blake2b(job.encode(), digest_size=16).hexdigest()}"


def holder(way: Access, job: str) -> str | None:
    """The address of the manager in charge, while it renews its Lease. Raises what the client
    raises."""
    try:
        found = _api(way).read_namespaced_lease(
            name(job), way.namespace, _request_timeout=(CONNECT, READ)
        )
    except client.ApiException as error:
        if error.status == 404:
            return None
        raise
    return found.spec.holder_identity if _held(found.spec, _now()) else None


class Lease:
    """The Lease of one manager, in a thread. `keep` has it from now on."""

    def __init__(self, way: Access, job: str) -> None:
        self._way, self._name = way, name(job)
        self._wanted: tuple[str, int] | None = None  # the address, and the term
        self._marked: dict[str, str] = {}  # nodes that are sub-healthy, and why
        self._release = False
        self._changed = threading.Event()
        self._over = False
        self._warned = ""
        self._thread: threading.Thread | None = None

    def keep(self, address: str, term: int) -> None:
        self._wanted = address, term
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="taskd lease", daemon=True)
            self._thread.start()
        self._changed.set()

    def mark(self, node: str, why: str) -> None:
        """Name a node as sub-healthy."""
        self._marked = {**self._marked, node: why[:MOST_TEXT]}
        self._changed.set()

    def release(self) -> None:
        """The job is over: release the Lease."""
        self._release = True

    def close(self) -> None:
        self._over = True
        self._changed.set()
        if self._thread is not None and self._release:
            self._thread.join(CONNECT)

    # -- the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            self._changed.clear()
            if self._over:
                break
            assert self._wanted is not None
            self._try(*self._wanted)
            self._changed.wait(RENEW)
        if self._release and self._wanted is not None:
            self._try("", self._wanted[1])

    def _try(self, address: str, term: int) -> None:
        try:
            why = self._write(address, term)
        except access.BROKEN as error:
            why = f"it is no Lease: {error}"[:200]
        except Exception as error:  # whatever the client raises, it is tried again
            why = access.describe(error)
        if why and why != self._warned:
            log.warning("the Lease %s is not renewed: %s", self._name, why)
        self._warned = why

    def _write(self, address: str, term: int) -> str:
        """Write the Lease; returns why not, "" if it is written. Raises what the client
        raises."""
        api, limit, now = _api(self._way), (CONNECT, READ), _now()
        spec = client.V1LeaseSpec(
            holder_identity=address,
            lease_duration_seconds=DURATION,
            lease_transitions=term,
            acquire_time=now,
            renew_time=now,
        )
        try:
            found = api.read_namespaced_lease(
                self._name, self._way.namespace, _request_timeout=limit
            )
        except client.ApiException as error:
            if error.status != 404:
                raise
            metadata = client.V1ObjectMeta(name=self._name, annotations=self._noted({}))
            made = client.V1Lease(metadata=metadata, spec=spec)
            api.create_namespaced_lease(self._way.namespace, made, _request_timeout=limit)
            return ""
        before = found.spec
        ours = before.holder_identity == (self._wanted or ("", 0))[0]
        if not ours and not address:
            return ""  # another manager has it by now
        if not ours and _held(before, now) and (before.lease_transitions or 0) >= term:
            return (
                f"{before.holder_identity} holds it in term {before.lease_transitions}, and the"
                f" term here is {term}"
            )
        if ours and address:
            spec.acquire_time = before.acquire_time
        found.metadata.annotations = self._noted(found.metadata.annotations or {})
        found.spec = spec  # its resourceVersion is that of what was read
        api.replace_namespaced_lease(self._name, self._way.namespace, found, _request_timeout=limit)
        return ""

    def _noted(self, before: Mapping[str, str]) -> dict[str, str]:
        """The annotations: others stay, and so does what an earlier manager has marked. Once the
        job is over nothing is marked."""
        others = {key: value for key, value in before.items() if key != SUB_HEALTHY}
        if self._release:
            return others
        known = {**_nodes(before.get(SUB_HEALTHY, "")), **self._marked}
        newest = dict(list(known.items())[-MOST_NODES:])
        return {**others, SUB_HEALTHY: json.dumps(newest)} if newest else others


def _nodes(text: str) -> dict[str, str]:
    """What an annotation names; nothing if it is damaged."""
    try:
        found = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    named = found.items() if isinstance(found, dict) else ()
    return {node[:MOST_TEXT]: why[:MOST_TEXT] for node, why in named if isinstance(why, str)}


def _api(way: Access) -> Any:
    return client.CoordinationV1Api(way.api)


def _now() -> datetime:
    return datetime.now(timezone.utc)


def _held(spec: Any, now: datetime) -> bool:
    if not spec.holder_identity or spec.renew_time is None:
        return False
    # one from the future would hold it forever
    age: timedelta = now - spec.renew_time
    return abs(age) < timedelta(seconds=DURATION)

"""Finds the manager in charge, for launchers and managers that start later.

Every pod knows the job's first address, that of node 0. Once node 0 has been lost and the manager
has moved, a pod that replaces it has that address itself, and would start the job over beside the
running one. So the manager in charge leaves its address in continuity.jsonl and, with the
Kubernetes API, in a Lease; a new launcher or manager first asks the manager named there, if any.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping, MutableMapping

from taskd import settings
from taskd.manager.following import kubernetes
from taskd.manager.history.continuity import Continuity, place_key
from taskd.protocol import addresses, asking
from taskd.protocol.addresses import Address
from taskd.protocol.keys import Keys
from taskd.settings.kinds import BadSetting

log = logging.getLogger("taskd.manager")


def elsewhere(
    known: Mapping[str, object], environ: Mapping[str, str], job: str, keys: Keys
) -> Address | None:
    """The address of a manager of the job that answers on another machine, where the last one in
    charge was. `known`: its entry in continuity.jsonl."""
    written = _answers(known.get(place_key(job)), environ, job, keys)
    return written or _answers(_leased(environ, job), environ, job, keys)


def _leased(environ: Mapping[str, str], job: str) -> object:
    if (way := kubernetes.access(environ)) is None:
        return None
    from taskd.kubernetes import access, lease

    try:
        return lease.holder(way, job)
    except Exception as error:  # whatever the client raises, the job begins without it
        log.warning("the Lease of job %s cannot be read: %s", job, access.describe(error))
        return None


def was_elsewhere(environ: Mapping[str, str], job: str) -> bool:
    """Whether the last manager in charge was on another machine, answering or not: the job is under
    way, or ended unknown to its manager."""
    if settings.manager_is_named(environ):
        return False
    known = Continuity(settings.log_path(environ)).read().get(place_key(job))
    return any(_named(place, environ) for place in (known, _leased(environ, job)))


def in_charge(environ: Mapping[str, str], job: str, keys: Keys, asked: Address) -> Address | None:
    """The address of the manager in charge, if it answers where the last one in charge was and that
    is not `asked`."""
    known = Continuity(settings.log_path(environ)).read().get(place_key(job))
    for left in (known, _leased(environ, job)):
        place = _place(left, asked[1])
        if place not in (None, asked) and asking.arrive(place, keys, job, -1) is not None:
            return place
    return None


def _answers(known: object, environ: Mapping[str, str], job: str, keys: Keys) -> Address | None:
    if (place := _named(known, environ)) is None:
        return None
    return None if asking.arrive(place, keys, job, -1) is None else place


def _named(known: object, environ: Mapping[str, str]) -> Address | None:
    """The recorded address, if it is a manager's on another machine."""
    place = _place(known, settings.port(environ))
    return None if place is None or addresses.is_here(place[0]) else place


def _place(known: object, on: int) -> Address | None:
    """The recorded address, if a manager on this port can have it."""
    if not isinstance(known, str):
        return None
    try:
        host, port = settings.manager_address({"TASKD_MANAGER_ADDR": known})
    except BadSetting:
        log.error("%r is not a manager's address; ignored", known)
        return None
    # a job's managers have one port: on another one is another job of the same id
    if port != on:
        return None
    try:
        socket.getaddrinfo(host, port)
    except (OSError, ValueError, TypeError) as error:  # no name that can be looked up
        log.error("%r is not a manager's address: %s; ignored", known, error)
        return None
    return host, port


def follow(environ: MutableMapping[str, str], job: str, keys: Keys) -> bool:
    """Make this process and its children use the manager elsewhere, if there is one. Returns
    whether there is."""
    if settings.manager_is_named(environ):
        return False
    known = Continuity(settings.log_path(environ)).read()
    if (place := elsewhere(known, environ, job, keys)) is None:
        return False
    environ["TASKD_MANAGER_ADDR"] = addresses.text(place)
    log.warning(
        "the manager in charge of job %s is at %s: this launcher uses it",
        job,
        environ["TASKD_MANAGER_ADDR"],
    )
    return True

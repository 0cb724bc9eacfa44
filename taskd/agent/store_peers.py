"""Who may connect to the stores that this launcher makes: the hosts of the job's agents, as the
manager tells. torch's stores ask nobody for a name, so that the kernel has to keep strangers away
(taskd/protocol/door.py)."""

from __future__ import annotations

import errno
import logging
import socket
import threading
import weakref
from collections.abc import Sequence
from typing import Any

from taskd.core.networks import Network, network
from taskd.messages.values import HOSTS
from taskd.protocol import addresses
from taskd.protocol.addresses import Address
from taskd.protocol.door import BACKLOG, Door

log = logging.getLogger("taskd.agent")

# seconds between two lines about connections that were kept away: a scan of ports makes many
QUIET = 60.0
NAMED = 5  # of their addresses


class StorePeers:
    """From any thread."""

    def __init__(self, also: Sequence[Network] | None) -> None:
        """`also`: who else may connect; None: everybody may."""
        self._also = also
        # a store may be forgotten wherever this thread is
        self._lock = threading.RLock()
        self.hosts: tuple[str, ...] = ()  # addresses of this machine
        self._told: tuple[str, ...] | None = None  # by a manager: of the job's
        self._doors: list[Door] = []
        self._quiet_until = 0.0

    def listen(self, address: Address, at_once: bool) -> tuple[socket.socket, Door | None]:
        """Listen for a store, at `address`. Before a manager has told who is of the job, others are
        kept away at once, or, for ranks that a manager need not know of, not yet. The door, if
        there is one, has to be given to `keep`. Raises OSError."""
        with self._lock:
            self.hosts = _own(address[0])
            if self._also is not None:
                given = self._let_in() if at_once or self._told is not None else None
                try:
                    door = Door(address, given)
                    return door.listener, door
                except OSError as error:
                    if error.errno in (errno.EADDRINUSE, errno.EADDRNOTAVAIL):
                        raise
                    self._powerless(error)
        family = addresses.family(address[0])
        return socket.create_server(address, family=family, backlog=BACKLOG), None

    def keep(self, store: Any, door: Door) -> None:
        """The door is that of `store`, and is renewed as long as that lives."""
        with self._lock:
            self._doors.append(door)
        weakref.finalize(store, self._forget, door)

    def _forget(self, door: Door) -> None:
        with self._lock:
            self._doors.remove(door)
            door.close()

    def told(self, hosts: Sequence[str]) -> None:
        """A manager tells the addresses of the job's hosts."""
        with self._lock:
            self._told = tuple(hosts)
            for door in list(self._doors):
                try:
                    door.let_in(self._let_in())
                except OSError as error:
                    self._powerless(error)

    def look(self, now: float) -> None:
        """Close the connections of others, and log where they came from."""
        with self._lock:
            found = sorted({host for door in list(self._doors) for host in door.kept_away()})
        if found and now >= self._quiet_until:
            self._quiet_until = now + QUIET
            log.warning(
                "connections to this launcher's rendezvous store from %s%s were closed: no agent of"
                " the job has told these addresses. If they are of the job's ranks, name their"
                " networks in TASKD_STORE_PEERS, or set it to any",
                ", ".join(found[:NAMED]),
                " and others" if len(found) > NAMED else "",
            )

    def _let_in(self) -> list[Network] | None:
        if self._also is None:
            return None
        found = list(self._also)
        for host in (*self.hosts, *(self._told or ())):
            try:
                found.append(network(host))
            except ValueError:
                log.warning("%r is no address: it is not let into the store", host)
        return found

    @staticmethod
    def _powerless(error: OSError) -> None:
        log.warning(
            "the kernel does not choose who reaches a rendezvous store (%s): whoever reaches its"
            " port may connect",
            error,
        )


def _own(host: str) -> tuple[str, ...]:
    """The addresses of this machine; the one that it is known by is the first."""
    found = [host, *(h for h in addresses.of_this_machine() if h != host)]
    if len(found) > HOSTS:
        log.warning(
            "this machine has %d addresses, and the job is told %d of them: if ranks send from"
            " another one, name it in TASKD_STORE_PEERS on all nodes",
            len(found),
            HOSTS,
        )
    return tuple(found[:HOSTS])

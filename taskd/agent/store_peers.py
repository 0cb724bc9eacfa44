"""Who may connect to the stores that this launcher makes: the hosts of the job's agents, as the
manager tells. torch's stores ask nobody for a name, so that the kernel has to keep strangers away
(taskd/protocol/door.py)."""

from __future__ import annotations

import errno
import logging
import socket
import threading
from collections.abc import Sequence

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
        self._lock = threading.Lock()
        self.hosts: tuple[str, ...] = ()  # addresses of this machine
        self._told: tuple[str, ...] | None = None  # by a manager: of the job's
        self._doors: list[Door] = []
        self._quiet_until = 0.0

    def listen(self, address: Address, at_once: bool) -> socket.socket:
        """Listen for a store, at `address`. Before a manager has told who is of the job, others are
        kept away at once, or, for ranks that a manager need not know of, not yet. Raises
        OSError."""
        with self._lock:
            self._sweep()
            self.hosts = _own(address[0])
            if self._also is not None:
                given = self._let_in() if at_once or self._told is not None else None
                try:
                    door = Door(address, given)
                    self._doors.append(door)
                    return door.listener
                except OSError as error:
                    if error.errno in (errno.EADDRINUSE, errno.EADDRNOTAVAIL):
                        raise
                    self._powerless(error)
        family = addresses.family(address[0])
        return socket.create_server(address, family=family, backlog=BACKLOG)

    def _sweep(self) -> None:
        """Close the doors of stores that are gone. That of torch's Python object does not tell: its
        server lives on in a PrefixStore, and while the interpreter ends."""
        for door in [d for d in self._doors if d.is_over()]:
            self._doors.remove(door)
            door.close()

    def told(self, hosts: Sequence[str]) -> None:
        """A manager tells the addresses of the job's hosts."""
        with self._lock:
            self._told = tuple(hosts)
            self._sweep()
            for door in self._doors:
                try:
                    door.let_in(self._let_in())
                except OSError as error:
                    self._powerless(error)

    def look(self, now: float) -> None:
        """Close the connections of others, and log where they came from."""
        with self._lock:
            self._sweep()
            found = sorted({host for door in self._doors for host in door.kept_away()})
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

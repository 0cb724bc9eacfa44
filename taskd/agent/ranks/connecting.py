"""What ranks cannot reach while their script sets up. A firewall answers nothing, and torch waits 5
to 30 minutes for the connection without a word."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

from taskd.agent.ranks.model import Epoch, Rank
from taskd.protocol import addresses
from taskd.protocol.addresses import Address

WAITS = 7.0  # seconds; a machine that is there answers or refuses in a round trip
SYN_SENT = "02"  # in /proc/net/tcp

log = logging.getLogger("taskd.agent")


@dataclass
class Connecting:
    """Said once of each epoch: what one rank cannot reach, the others seldom can."""

    _since: dict[tuple[int, str], float] = field(default_factory=dict)  # by rank and host
    _said: Epoch | None = None

    def look(self, epoch: Epoch, now: float) -> None:
        """Called every few seconds."""
        if epoch.protected or self._said is epoch:
            return
        ranks = [r for r in epoch.ranks.values() if not (r.joined or r.over)]
        found = {(r.number, where[0]): where for r in ranks for where in unanswered(r)}
        self._since = {key: self._since.get(key, now) for key in found}
        key = min(self._since, key=self._since.__getitem__, default=None)
        if key is not None and now - self._since[key] >= WAITS:
            self._said = epoch
            log.warning(
                "rank %d has tried to connect to %s for %.0f s, and nothing answers there: a"
                " firewall between the nodes (its ports: docs/operations.md), or an address that"
                " others do not reach (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME)",
                key[0],
                addresses.text(found[key]),
                now - self._since[key],
            )


def unanswered(rank: Rank) -> list[Address]:
    """Where this rank's process is connecting to, and has no answer yet."""
    try:
        if not (pending := dict(_pending(rank.pid))):
            return []
        return [pending[inode] for inode in _sockets(rank.pid) if inode in pending]
    except OSError:  # it has ended
        return []


def _pending(pid: int) -> Iterator[tuple[str, Address]]:
    """The connections of its network namespace that wait for an answer: inode, and where to."""
    for kind in ("tcp", "tcp6"):
        with contextlib.suppress(FileNotFoundError), open(f"/proc/{pid}/net/{kind}") as file:
            for line in file:
                if len(fields := line.split()) > 9 and fields[3] == SYN_SENT:
                    yield fields[9], _address(fields[2])


def _address(text: str) -> Address:
    """Of 0100007F:2581: words of 32 bits, as the processor has them."""
    digits, _, port = text.partition(":")
    words = (int(digits[at : at + 8], 16) for at in range(0, len(digits), 8))
    data = b"".join(word.to_bytes(4, sys.byteorder) for word in words)
    if data.startswith(bytes(10) + b"\xff\xff"):  # IPv4 in an IPv6 socket
        data = data[12:]
    family = socket.AF_INET6 if len(data) == 16 else socket.AF_INET
    return socket.inet_ntop(family, data), int(port, 16)


def _sockets(pid: int) -> Iterator[str]:
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            kind, _, inode = os.readlink(f"/proc/{pid}/fd/{name}").partition(":[")
            if kind == "socket":
                yield inode.rstrip("]")

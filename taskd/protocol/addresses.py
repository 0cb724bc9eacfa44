"""Hosts and ports, IPv4 or IPv6."""

from __future__ import annotations

import errno
import random
import socket
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
Address = tuple[str, int]


def of(name: str) -> list[str]:
    """The addresses that `name` leads to; IPv4 first, so that all machines try them in one
    order."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # no name that can be looked up
        return []
    return sorted(dict.fromkeys(str(place[0]) for *_, place in found), key=lambda a: ":" in a)


def family(host: str) -> socket.AddressFamily:
    """Of an address, or of a name: IPv6 if it leads nowhere else."""
    first = next(iter(of(host)), "") if ":" not in host else host
    return socket.AF_INET6 if ":" in first else socket.AF_INET


def text(address: Address) -> str:
    """HOST:PORT or [IPV6]:PORT, as TASKD_MANAGER_ADDR has it."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_here(host: str) -> bool:
    """Whether `host` is an address of this machine."""
    try:
        with socket.socket(family(host), socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))
            return True
    except OSError:
        return False


def is_loopback(address: str) -> bool:
    return address == "::1" or address.startswith("127.")


def same_host(name: str, address: str) -> bool:
    """Whether `name` leads to `address`."""
    return name == address or address in of(name)


def any_port(ports: range | None, take: Callable[[int], T]) -> T:
    """Call `take` with ports until it finds a free one, and return its result; 0 where there is no
    range. Raises OSError; EADDRINUSE: all of the range are taken."""
    if ports is None:
        return take(0)
    for port in random.sample(ports, len(ports)):
        try:
            return take(port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    text = f"all {len(ports)} ports of TASKD_PORT_RANGE are taken: widen it"
    raise OSError(errno.EADDRINUSE, text)


def listens(address: Address, limit: float) -> bool:
    """Whether a process listens at `address`. Waits at most `limit` seconds; this machine answers
    or refuses at once."""
    with socket.socket(family(address[0]), socket.SOCK_STREAM) as probe:
        probe.settimeout(limit)
        return probe.connect_ex(address) == 0


def towards(peer: Address) -> str:
    """This machine's address on the route to `peer`."""
    with socket.socket(family(peer[0]), socket.SOCK_DGRAM) as probe:
        probe.connect(peer)
        return str(probe.getsockname()[0])

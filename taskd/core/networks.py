"""Networks of IP addresses, and few of them that contain many."""

from __future__ import annotations

import ipaddress
from bisect import bisect_left
from collections.abc import Iterable, Iterator

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

LOOPBACK: tuple[Network, ...] = (
    ipaddress.ip_network("127.0.0.0/8"),
    ipaddress.ip_network("::1/128"),
)


def network(text: str) -> Network:
    """A network or an address; IPv4 within IPv6 is IPv4, as the packets are. Raises ValueError."""
    found = ipaddress.ip_network(text, strict=False)
    if isinstance(found, ipaddress.IPv6Network) and found.prefixlen >= 96:
        mapped = found.network_address.ipv4_mapped
        if mapped is not None:
            return ipaddress.ip_network((int(mapped), found.prefixlen - 96))
    return found


def widened(networks: Iterable[Network], most: int) -> list[Network]:
    """At most `most` networks, at least 2, that contain the given ones and as little else as their
    common prefixes allow."""
    given = list(networks)
    found = [n for version in (4, 6) for n in _merged(given, version)]
    if len(found) <= most:
        return found
    # as few bits less as possible, of IPv6's longer prefixes four times as many
    bits = bisect_left(range(33), True, key=lambda b: len(_shortened(found, b)) <= most)
    return sorted(
        (ipaddress.ip_network((address, length)) for _, address, length in _shortened(found, bits)),
        key=lambda n: (n.version, int(n.network_address)),
    )


def _merged(networks: list[Network], version: int) -> Iterator[Network]:
    same = [n for n in networks if n.version == version]
    return ipaddress.collapse_addresses(same)  # type: ignore[type-var]


def _shortened(networks: list[Network], bits: int) -> set[tuple[int, bytes, int]]:
    """Version, address and prefix length of networks with prefixes that are shorter."""
    found: set[tuple[int, bytes, int]] = set()
    for one in networks:
        most = one.max_prefixlen
        length = min(one.prefixlen, max(most - bits * (1 if one.version == 4 else 4), 0))
        address = int(one.network_address) >> (most - length) << (most - length)
        found.add((one.version, address.to_bytes(most // 8, "big"), length))
    return found

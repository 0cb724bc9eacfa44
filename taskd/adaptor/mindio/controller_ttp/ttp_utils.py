"""Addresses and numbers as the interface checks them."""

from __future__ import annotations

import ipaddress
import logging
import os
import socket

log = logging.getLogger("taskd.worker")


def is_valid_ipv4(ip: str) -> bool:
    return _address(ip, 4) is not None


def is_valid_ipv6(ip: str) -> bool:
    return _address(ip, 6) is not None


def is_valid_ip(ip_str: str) -> bool:
    return is_valid_ipv4(ip_str) or is_valid_ipv6(ip_str)


def is_zero_ip(ip_str: str) -> bool:
    """Whether it is the address of all interfaces, which nobody can connect to."""
    return any((found := _address(ip_str, v)) is not None and int(found) == 0 for v in (4, 6))


def _address(text: str, version: int) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    return found if found.version == version else None


def input_ip_transform(input_ip: str, max_retries: int = 3) -> str:
    """The address of a host name, looked up at most `max_retries` times; `input_ip` itself where
    none is found."""
    if not input_ip or is_valid_ip(input_ip):
        return input_ip
    for _ in range(max_retries):
        try:
            return str(socket.getaddrinfo(input_ip, None)[0][4][0])
        except OSError as error:
            log.warning("%r is neither an address nor a known host: %s", input_ip, error)
    return input_ip


def get_env_var_int_safely(
    env_var_name: str,
    default_value: int,
    min_value: int | None = None,
    max_value: int | None = None,
) -> int:
    """The variable's number; the default where it is not set, no number, or outside the limits."""
    given = os.environ.get(env_var_name)
    if given is None:
        return default_value
    low = float("-inf") if min_value is None else min_value
    high = float("inf") if max_value is None else max_value
    try:
        if low <= int(given) <= high:
            return int(given)
    except ValueError:
        pass
    log.warning(
        "%s=%r: give a number from %s to %s; using %s",
        env_var_name,
        given,
        low,
        high,
        default_value,
    )
    return default_value

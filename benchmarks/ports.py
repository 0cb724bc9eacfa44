"""A port for a manager, where nobody else comes to be."""

from __future__ import annotations

import random
import socket
from pathlib import Path

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")  # what the kernel gives out by itself


def free_port() -> int:
    """Below those: agents whose manager was killed go on looking for it there, and must not meet
    the listener that a collective library of another job has been given meanwhile: suspected where
    a plain torchrun job's connections broke while they were made."""
    first = int(RANGE.read_text().split()[0])
    while True:
        port = random.SystemRandom().randrange(first // 3, first)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port

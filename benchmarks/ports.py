"""A port for a manager that no other process will be given."""

from __future__ import annotations

import random
import socket
from pathlib import Path

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")  # the ports that the kernel assigns


def free_port() -> int:
    """A free port below the kernel's range: agents whose manager was killed keep connecting there,
    and must not reach a port assigned meanwhile to another job's collective library: suspected when
    a plain torchrun job's connections broke during set-up."""
    first = int(RANGE.read_text().split()[0])
    while True:
        port = random.SystemRandom().randrange(first // 3, first)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port

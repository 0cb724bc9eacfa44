"""A port for a manager that no other process will be given."""

from __future__ import annotations

import fcntl
import random
import socket
import tempfile
from functools import cache
from pathlib import Path
from typing import IO

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")  # the ports that the kernel assigns

_given: set[int] = set()  # to this process; the locks keep the others away


def free_port() -> int:
    """A free port below the kernel's range, of which each is given once on this machine while its
    taker lives: agents whose manager was killed keep connecting there, and must not reach a port
    assigned meanwhile to another job's collective library: suspected when a plain torchrun job's
    connections broke during set-up."""
    first = int(RANGE.read_text().split()[0])
    while True:
        port = random.SystemRandom().randrange(first // 3, first)
        if port in _given:
            continue
        with socket.socket() as probe:
            try:
                fcntl.lockf(_claims(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        _given.add(port)
        return port


@cache
def _claims() -> IO[bytes]:
    """A file of which each byte that is locked stands for a port that a process has taken."""
    return (Path(tempfile.gettempdir()) / "taskd-ports").open("a+b")

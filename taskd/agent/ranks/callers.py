"""Finds the process at the other end of a local connection, and its rank: a rank may send only in
its own name."""

from __future__ import annotations

import os
import socket
import struct
from dataclasses import dataclass

from taskd.messages import codec, from_rank

GENERATIONS = 64  # most processes between a rank's and one that it has started


class Stranger(codec.BadMessage):
    """Another user's process."""


@dataclass(frozen=True)
class Caller:
    """A connection whose first message is `hello`. `pid` comes from the kernel; 0 for a process
    that is invisible from here."""

    line: socket.socket
    pid: int
    hello: from_rank.Hello


def hear(line: socket.socket, limit: float) -> Caller:
    """Identify a caller within `limit` seconds. Raises Stranger, BadMessage for a message that is
    no hello, and OSError."""
    pid, uid, _ = struct.unpack(
        "3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    )
    if uid != os.getuid():
        raise Stranger(f"a process of user {uid}")
    line.settimeout(limit)
    hello = codec.HELLO.decode(line.recv(codec.MAX_BYTES))
    line.setblocking(False)
    return Caller(line, pid, hello)


def belongs(pid: int, ancestor: int) -> bool:
    """Whether process `pid` is `ancestor` or its descendant: under a wrapper, such as a shell, the
    rank is the wrapper's child."""
    for _ in range(GENERATIONS):
        if pid == ancestor:
            return pid > 0
        if pid <= 1:
            return False
        pid = _parent(pid)
    return False


def _parent(pid: int) -> int:
    """The parent's pid; 0 if the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def closed(line: socket.socket) -> bool:
    """Whether the other end is closed, and everything from it was read."""
    try:
        return not line.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True

"""Decides who may connect: the ZAP handler of a server's socket (ZeroMQ RFC 27), run in the
server's own loop.

CURVE alone authenticates the server to its clients, and proves that they know the server's public
key, which is never sent. libzmq asks ZAP about each connection before it delivers the first
message. The reply names the remote process by its public key; libzmq attaches that name, `User-Id`,
to every message of the connection, and `speaker` reads it. A process with another secret derives
another name for itself, so its messages are dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import zmq

from taskd.protocol.keys import Keys

ENDPOINT = "inproc://zeromq.zap.01"  # fixed by the RFC
DOMAIN = b"taskd"
BATCH = 256  # answers per turn of the loop: a storm of connections must not delay its deadlines
PUBLIC = 32  # bytes of a CURVE key


class Gate:
    """Authenticates connections; calls `refused(address)` for each one that it rejects."""

    def __init__(
        self, context: zmq.Context[Any], keys: Keys, refused: Callable[[str], None]
    ) -> None:
        self._keys = keys
        self._refused = refused
        self.socket: zmq.Socket[Any] = context.socket(zmq.REP)
        self.socket.linger = 0
        self.socket.bind(ENDPOINT)

    def answer(self) -> None:
        """Answer pending requests."""
        for _ in range(BATCH):
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self.socket.send_multipart(self._verdict(frames))

    def _verdict(self, frames: list[bytes]) -> list[bytes]:
        # version, request id, domain, address, routing id, mechanism, credentials
        request = frames[1] if len(frames) > 1 else b""
        if (
            len(frames) == 7
            and frames[0] == b"1.0"
            and frames[5] == b"CURVE"
            and len(frames[6]) == PUBLIC
        ):
            return [b"1.0", request, b"200", b"OK", self._keys.name(frames[6]).encode(), b""]
        self._refused(frames[3].decode("ascii", "replace") if len(frames) > 3 else "?")
        return [b"1.0", request, b"400", b"no CURVE key", b"", b""]


def speaker(frame: zmq.Frame) -> str:
    """The name of the process that sent `frame`'s message; "" where the socket has no Gate."""
    try:
        return str(frame.get("User-Id"))
    except zmq.ZMQError:
        return ""

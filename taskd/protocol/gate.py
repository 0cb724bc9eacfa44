"""Who may connect: the ZAP handler of the manager's socket (ZeroMQ RFC 27), answered in the manager's own loop.

CURVE alone proves the manager to its agents; any client with a key of its own would be let in. ZAP is asked for each
connection before the first message of it is delivered, and admits the client key of this job only.
"""

from __future__ import annotations

from collections.abc import Callable
from hmac import compare_digest
from typing import Any

import zmq
from zmq.utils import z85

ENDPOINT = "inproc://zeromq.zap.01"  # fixed by the RFC
DOMAIN = b"taskd"
BATCH = 256  # answers per turn of the loop: a storm of connections must not keep it from its deadlines


class Gate:
    """`refused(address)` is called for each connection that is turned away."""

    def __init__(self, context: zmq.Context[Any], client_public: bytes, refused: Callable[[str], None]) -> None:
        self._client = z85.decode(client_public)
        self._refused = refused
        self.socket: zmq.Socket[Any] = context.socket(zmq.REP)
        self.socket.linger = 0
        self.socket.bind(ENDPOINT)

    def answer(self) -> None:
        """Answer what is asked by now."""
        for _ in range(BATCH):
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self.socket.send_multipart(self._verdict(frames))

    def _verdict(self, frames: list[bytes]) -> list[bytes]:
        # version, request id, domain, address, routing id, mechanism, credentials
        request = frames[1] if len(frames) > 1 else b""
        if len(frames) == 7 and frames[0] == b"1.0" and frames[5] == b"CURVE" and compare_digest(frames[6], self._client):
            return [b"1.0", request, b"200", b"OK", b"agent", b""]
        self._refused(frames[3].decode("ascii", "replace") if len(frames) > 3 else "?")
        return [b"1.0", request, b"400", b"another key", b"", b""]

"""A connection to an agent that keeps records."""

from __future__ import annotations

import contextlib
from typing import Any

import zmq

from taskd.messages import codec
from taskd.protocol import curve
from taskd.protocol.keys import Identity, Keys

MAX_BYTES = 1 << 30  # of a record, which includes module buffers


class KeeperConnection:
    def __init__(
        self, context: zmq.Context[Any], address: tuple[str, int], keys: Keys, identity: Identity
    ) -> None:
        self.socket: zmq.Socket[bytes] = curve.client(
            context, address[0], keys, identity, MAX_BYTES
        )
        self.socket.connect(curve.endpoint(*address))

    def send(self, data: bytes) -> None:
        """Send an encoded message."""
        # the keeper has been away for long; the manager will name another one
        with contextlib.suppress(zmq.Again):
            self.socket.send(data, zmq.NOBLOCK)

    def received(self) -> list[Any]:
        """The messages that have arrived; drops anything else."""
        out: list[Any] = []
        while True:
            try:
                data = self.socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return out
            with contextlib.suppress(codec.BadMessage):
                out.append(codec.FROM_KEEPER.decode(data, MAX_BYTES))

    def close(self) -> None:
        self.socket.close(0)

"""Messages from the manager: sealed, numbered if they must arrive, and sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import zmq

from taskd.manager.peers import Peer
from taskd.messages import codec
from taskd.messages.envelope import VERSION, Envelope, seal

# plain ints: arithmetic on pyzmq's enums costs microseconds per message
_NOBLOCK = int(zmq.NOBLOCK)
_ROUTE = _NOBLOCK | int(zmq.SNDMORE)


class Outgoing:
    """Sends to agents and operators. `router`: the socket, once it is bound."""

    router: zmq.Socket[bytes]

    def __init__(self, job: str, name: str, term: Callable[[], int]) -> None:
        """`name`: of the manager's process; `term`: the one that it claims."""
        self.job, self._name, self._term = job, name, term
        self._seq = 0

    def seal(self, message: Any, numbered: bool = False) -> bytes:
        self._seq += 1
        number = self._seq if numbered else 0
        term = self._term()
        return seal(
            Envelope(
                VERSION, self.job, -1, self._name, self._seq, codec.encode(message), term, number
            )
        )

    def send(self, peer: Peer, message: Any) -> None:
        self.deliver(peer, self.seal(message, numbered=True))

    def send_now(self, peer: Peer, message: Any) -> None:
        """Send a message that need not arrive."""
        self.put(peer.route, self.seal(message))

    def deliver(self, peer: Peer, data: bytes) -> None:
        """Send a message just sealed with a number; it is kept until the agent has it."""
        if peer.outbox.add(data, self._seq) and not self.put(peer.route, data):
            peer.outbox.in_step = False

    def reply(self, route: bytes, message: Any) -> None:
        # if the process is gone, the answer is not needed
        self.put(route, self.seal(message))

    def put(self, route: bytes, data: bytes) -> bool:
        try:
            self.router.send(route, _ROUTE)  # refused here, if at all
            self.router.send(data, _NOBLOCK)
        except zmq.ZMQError:  # EHOSTUNREACH: the connection is gone; EAGAIN: it does not read
            return False
        return True

"""An agent's or operator's connection to a manager: one DEALER socket under CURVE, messages in
numbered envelopes."""

from __future__ import annotations

import errno
import logging
import time
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from taskd.messages import codec
from taskd.messages.envelope import VERSION, Envelope, seal, unseal
from taskd.protocol import curve, pings
from taskd.protocol.delivery import Inbox
from taskd.protocol.keys import Identity, Keys

log = logging.getLogger("taskd.link")

REFUSALS = 2  # in a row, 20 to 40 ms apart; a manager that ends just then causes one


class Link:
    """Sends and receives without blocking; reconnects by itself. Used by one thread."""

    def __init__(
        self,
        address: tuple[str, int],
        keys: Keys,
        job: str,
        node: int,
        identity: Identity | None = None,
        refusal: bool = True,
        nodes: int = 1,
        said: codec.Decoder[Any] = codec.TO_AGENT,
    ) -> None:
        """`identity`: of this process; a new one by default. `refusal`: log a refused key. `nodes`:
        of the job. `said`: decodes what the manager may send."""
        self.address, self._job, self.node, self._said = address, job, node, said
        self.identity = identity or keys.identity()
        self._seq = 0
        self.place = address  # of the last manager heard: `address` may be a name
        self.answered = False  # whether the manager has ever answered
        self.term = 0  # of the manager that sent the last message received
        self.manager = ""  # name of its process
        self._inbox = ("", Inbox(gaps=True))  # of that process
        context: zmq.Context[Any] = zmq.Context.instance()
        self.socket: zmq.Socket[bytes] = curve.client(
            context, address[0], keys, self.identity, codec.MAX_BYTES
        )
        self.socket.setsockopt(zmq.LINGER, 500)  # ms; the last message reports how the node ended
        for option, value in pings.of_agent(nodes).items():
            self.socket.setsockopt(option, value)
        self.socket.setsockopt(zmq.RECONNECT_IVL, pings.again(nodes))
        # a machine that is cut off swallows the attempt; the next may reach another machine
        self.socket.setsockopt(zmq.CONNECT_TIMEOUT, 1000)
        self.socket.setsockopt(zmq.SNDHWM, 1000)
        self.monitor = self.socket.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_FAILED_AUTH
            | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
            | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
            | zmq.EVENT_HANDSHAKE_SUCCEEDED
            | zmq.EVENT_DISCONNECTED
        )
        self._told = not refusal
        self.connected = False
        self.connections = 0  # how many there have been
        self.refusals = 0  # attempts that the other side ended, before there was any
        self.socket.connect(curve.endpoint(*address))

    def send(self, message: Any) -> bool:
        """Send a message; False when the queue is full: the manager has been away for long."""
        return self.say(codec.encode(message), 0)

    def say(
        self, body: bytes, number: int, node: int | None = None, at: float | None = None
    ) -> bool:
        """Send an encoded message under `number` of protocol.delivery; False as above. `node`: the
        sender when it was first sent, `at`; a standby may have become a node since."""
        self._seq += 1
        sender = self.node if node is None else node
        at = time.monotonic() if at is None else at
        envelope = Envelope(
            VERSION, self._job, sender, self.identity.name, self._seq, body, 0, number, at
        )
        try:
            self.socket.send(seal(envelope), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def receive(self) -> Any | None:
        """The manager's next message, or None. Drops anything that is not a message of its."""
        while True:
            try:
                frame = self.socket.recv(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return None
            try:
                envelope = unseal(frame.bytes)
                if envelope.job != self._job or envelope.sender != -1:
                    raise codec.BadMessage("not from this job's manager")
                message = self._said.decode(envelope.body)
            except codec.BadMessage as error:
                log.warning("a message from %s:%d was dropped: %s", *self.address, error)
                continue
            self.answered, self.term, self.manager = True, envelope.term, envelope.process
            if self._inbox[0] != envelope.process:
                self._inbox = (envelope.process, Inbox(gaps=True))
                host = str(frame.get("Peer-Address")).removeprefix("::ffff:")
                self.place = host, self.address[1]
            if envelope.number and not self._inbox[1].take(envelope.number):
                continue  # resent: the manager could not know that it had arrived
            return message

    @property
    def taken(self) -> int:
        """Number of the last order received; see protocol.delivery."""
        return self._inbox[1].number

    def read_monitor(self) -> None:
        """Update whether there is a connection; log once that the key is refused, which otherwise
        looks like silence."""
        while self.monitor.poll(0):
            found = recv_monitor_message(self.monitor)
            event = found["event"]
            self.connected = event == zmq.EVENT_HANDSHAKE_SUCCEEDED
            self.connections += self.connected
            # a manager that cannot decrypt our handshake under its key hangs up without a reply;
            # one that says nothing is no manager, or cannot answer yet. A disconnection follows
            silent = found["value"] == errno.EAGAIN or event == zmq.EVENT_DISCONNECTED
            if self.answered or self.connections or silent:
                continue
            self.refusals += 1
            if not self._told and self.refusals >= REFUSALS:
                self._told = True
                log.error(
                    "%s:%d refuses this key: TASKD_SECRET (or TASKD_SECRET_FILE; without them"
                    " MINDX_TASK_ID or TASKD_PORT) differs from the manager's",
                    *self.address,
                )

    def close(self) -> None:
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close()

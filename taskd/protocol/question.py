"""One question to a manager, and its answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import zmq

from taskd.messages import from_agent
from taskd.protocol.keys import Keys
from taskd.protocol.link import REFUSALS, Link


class ManagerGone(ConnectionError):
    """The connection to the manager has ended before its answer."""


class KeyRefused(ConnectionError):
    """What listens there cannot read what we encrypt."""


LATE = 1.0  # seconds; an answer that nothing has to be done for takes a round trip


def ask(
    link: Link,
    question: Any,
    is_answer: Callable[[Any], bool],
    limit: float,
    late: Callable[[], None] | None = None,
) -> Any | None:
    """Send `question` and return the first message that answers it; None after `limit` seconds.
    `late`, if given, is called once if there is none after LATE, and a key that is refused is not
    tried until the limit. Raises ManagerGone and KeyRefused."""
    began = time.monotonic()
    deadline = began + limit
    link.send(question)
    poller = zmq.Poller()
    poller.register(link.socket, zmq.POLLIN)
    poller.register(link.monitor, zmq.POLLIN)
    waits = late is not None
    while (left := deadline - time.monotonic()) > 0:
        if late is not None:
            left = min(left, began + LATE - time.monotonic())
            if left <= 0:
                late()
                late, left = None, 0.0
        if link.monitor in dict(poller.poll(int(left * 1000) + 1)):
            link.read_monitor()
        if waits and link.refusals >= REFUSALS:
            raise KeyRefused
        while (message := link.receive()) is not None:
            if is_answer(message):
                return message
        # its last messages have been read; the next manager does not know the question
        if link.connections and not link.connected:
            raise ManagerGone(f"the manager at {link.address[0]}:{link.address[1]} is gone")
    return None


def answers(address: tuple[str, int], keys: Keys, job: str, limit: float = 2.0) -> bool:
    """Whether a manager of `job` answers at `address`: it asks an unknown agent to register. The
    handshake takes 2 ms."""
    link = Link(address, keys, job, 0, refusal=False)
    try:
        return ask(link, from_agent.Heartbeat(0), lambda _: True, limit) is not None
    except ManagerGone:
        return False
    finally:
        link.close()

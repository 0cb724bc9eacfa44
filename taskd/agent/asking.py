"""One question to the manager, before there is an agent: is the job under way?"""

from __future__ import annotations

import socket
import time

from taskd.protocol import messages
from taskd.protocol.keys import Keys
from taskd.protocol.link import Link

CONNECT = 1.0  # seconds; a machine that is there answers or refuses in a round trip
ANSWER = 2.0  # seconds; a CURVE handshake takes 2 ms


def under_way(address: tuple[str, int], keys: Keys, job: str) -> bool:
    """False also where nobody answers: at the start of a job its manager may come later than its agents."""
    try:
        socket.create_connection(address, CONNECT).close()
    except OSError:
        return False
    link = Link(address, keys, job, messages.STANDBY, refusal=False)
    try:
        link.send(messages.Arrived())
        end = time.monotonic() + ANSWER
        while link.socket.poll(max(int((end - time.monotonic()) * 1000), 0)):
            answer = link.receive()
            if isinstance(answer, messages.UnderWay):
                return answer.protected
        return False
    finally:
        link.close()

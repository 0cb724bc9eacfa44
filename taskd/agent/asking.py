"""One question to the manager, before there is an agent: is the job under way, and has our node a
launcher already?"""

from __future__ import annotations

import socket

from taskd.messages import from_agent, to_agent
from taskd.messages.envelope import STANDBY
from taskd.protocol import question
from taskd.protocol.keys import Keys
from taskd.protocol.link import Link

CONNECT = 1.0  # seconds; a machine that is there answers or refuses in a round trip
ANSWER = 2.0  # seconds; a CURVE handshake takes 2 ms


def arrive(address: tuple[str, int], keys: Keys, job: str, node: int) -> to_agent.UnderWay | None:
    """The manager's answer to a launcher for `node`, -1 where it does not know. None also where
    nobody answers: at the start of a job its manager may come later than its agents."""
    try:
        socket.create_connection(address, CONNECT).close()
    except OSError:
        return None
    link = Link(address, keys, job, STANDBY, refusal=False)
    try:
        return question.ask(
            link,
            from_agent.Arrived(node),
            lambda answer: isinstance(answer, to_agent.UnderWay),
            ANSWER,
        )
    except question.ManagerGone:
        return None
    finally:
        link.close()


def second(address: tuple[str, int], job: str, node: int) -> str:
    """What is said to a second job."""
    return (
        f"port {address[1]} on {address[0]} is that of a job {job!r} which runs, and its node"
        f" {node} has a launcher: give this job another port (--port, or TASKD_PORT on all its"
        " nodes), or end the other job"
    )

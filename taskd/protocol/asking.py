"""A launcher's question to the manager before it has an agent: is the job under way, and does its
node have a launcher already?"""

from __future__ import annotations

import socket

from taskd.messages import from_agent, to_agent
from taskd.messages.envelope import STANDBY
from taskd.protocol import question
from taskd.protocol.keys import Keys
from taskd.protocol.link import Link

CONNECT = 1.0  # seconds; a reachable machine answers or refuses in a round trip
NAME = 128  # characters of a rendezvous that are sent, see messages.values.Name
OTHER_PORT = "give this job another port (--port, or TASKD_PORT on all its nodes)"
ANSWER = 2.0  # seconds; a CURVE handshake takes 2 ms


def arrive(
    address: tuple[str, int], keys: Keys, job: str, node: int, rendezvous: str = ""
) -> to_agent.UnderWay | None:
    """The manager's answer to a launcher for `node`, -1 if the launcher does not know it, that is
    to meet others under the id `rendezvous`. None if no manager answers: at the start of a job the
    manager may start after the agents."""
    try:
        socket.create_connection(address, CONNECT).close()
    except OSError:
        return None
    link = Link(address, keys, job, STANDBY, refusal=False)
    try:
        return question.ask(
            link,
            from_agent.Arrived(node, rendezvous[:NAME]),
            lambda answer: isinstance(answer, to_agent.UnderWay),
            ANSWER,
        )
    except question.ManagerGone:
        return None
    finally:
        link.close()


def second(address: tuple[str, int], job: str, node: int) -> str:
    """The error that a second job on the same port gets, or a launcher that is one too many."""
    whose = f"whose node {node} has a launcher"
    if node < 0:
        whose = (
            "which has all its launchers; with recover among its strategies (--recover-strategy"
            " retry,recover-in-place,recover) one that comes later replaces a lost one"
        )
    return f"{_belongs(address, job)}, {whose}: {OTHER_PORT}, or end the other job"


def elsewhere(address: tuple[str, int], job: str, ours: str, theirs: str) -> str:
    """The error of a launcher that waits for others elsewhere than they do."""
    return (
        f"{_belongs(address, job)}, whose launchers meet under {theirs}, and this one has {ours}:"
        f" give all launchers of a job the same ones; if they are two jobs, {OTHER_PORT}"
    )


def _belongs(address: tuple[str, int], job: str) -> str:
    return f"port {address[1]} on {address[0]} belongs to the running job {job!r}"

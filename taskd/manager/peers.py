"""The agents that the manager knows, and which of their messages it accepts. No socket here.

An agent is a process that has a node, or is a standby. The ZeroMQ routing id is only the return
route, taken from each message. Within one process `seq` grows; a message older than the newest is
late and dropped.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any, get_args

import zmq

from taskd.manager.clocks import Clock
from taskd.messages import codec, from_agent
from taskd.messages.envelope import OPERATOR, Envelope
from taskd.messages.values import About
from taskd.protocol.delivery import Inbox, Outbox

# orders that an agent may leave unacknowledged; a repair needs fewer than ten, and each heartbeat
# acknowledges
UNHEARD = 1000

# messages of an agent about one of its own ranks
RANK_EVENTS = frozenset(t for t in get_args(from_agent.FromAgent) if "rank" in t.__struct_fields__)

log = logging.getLogger("taskd.manager")


class Dropped(ValueError):
    """This message is rejected, and counted under `kind`."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


@dataclass(frozen=True)
class Origin:
    """Where a message came from: its return route, envelope and first frame."""

    route: bytes
    envelope: Envelope
    frame: zmq.Frame

    @property
    def descriptor(self) -> int:
        """The connection's file descriptor."""
        return int(self.frame.get(zmq.SRCFD))


@dataclass
class Peer:
    """An agent. `node` is STANDBY for one without a node. `records`: where it listens for other
    agents; `connection`: the descriptor of its connection here."""

    node: int
    agent: str
    route: bytes
    ranks: tuple[int, ...]
    seq: int
    last_heard: float
    records: tuple[str, int] = ("", 0)
    about: About = About()
    connection: int = -1
    host: str = ""  # see from_agent.DevicesAt
    chips: tuple[int, ...] = ()
    inbox: Inbox = field(default_factory=Inbox)
    outbox: Outbox[bytes] = field(default_factory=Outbox)
    clock: Clock = field(default_factory=Clock)


def decode(envelope: Envelope) -> Any:
    """Decode the message, with the operator's or the agent's decoder. Raises BadMessage."""
    if envelope.sender == OPERATOR:
        return codec.FROM_OPERATOR.decode(envelope.body)
    return codec.FROM_AGENT.decode(envelope.body)


def check_speaker(envelope: Envelope, speaker: str) -> None:
    """Raises Dropped if the envelope names another process than the one at the other end of the
    connection, `speaker`."""
    if envelope.process != speaker:
        raise Dropped(
            "another's name",
            f"process {speaker[:8]} sends as {envelope.process[:8]}: its secret is another one,"
            " or it is not part of this job",
        )


def check_envelope(envelope: Envelope, job: str) -> None:
    """Raises Dropped for an envelope of another job; `unseal` has checked the version."""
    if envelope.job != job:
        detail = f"an agent of job {envelope.job[:80]!r} talks to the manager of job {job!r}"
        raise Dropped("another job", f"{detail}: check its TASKD_MANAGER_ADDR and MINDX_TASK_ID")


def check_registration(event: from_agent.AgentJoined, sender: int, nodes: int) -> None:
    """Raises Dropped for a registration that contradicts itself; the coordinator refuses one that
    contradicts the job."""
    told = (*event.joined, *event.waiting, *event.dead, *event.new, *event.ready)
    if event.node != sender:
        wrong = f"node {event.node} in an envelope of node {sender}"
    elif not 0 <= sender < nodes:
        wrong = f"node {sender}: this job has nodes 0 to {nodes - 1}: check node_nums"
    elif event.incarnations and len(event.incarnations) != len(event.ranks):
        wrong = f"{len(event.incarnations)} incarnations for {len(event.ranks)} ranks"
    elif not set(event.ranks).issuperset(told):
        wrong = "a rank outside `ranks` in joined, waiting, dead, new or ready"
    else:
        return
    raise Dropped("registration", wrong)


def check_event(message: Any, peer: Peer) -> None:
    """Raises Dropped for a message that this agent may not send."""
    name = type(message).__name__
    # no isinstance: there are twenty types, and nearly all messages are of these
    if type(message) in RANK_EVENTS:
        if message.rank not in peer.ranks:
            detail = (
                f"node {peer.node} sent {name} of rank {message.rank}; its ranks are"
                f" {list(peer.ranks)}"
            )
            raise Dropped("foreign rank", detail)
    elif isinstance(
        message,
        from_agent.AgentLeft
        | from_agent.StepsBegun
        | from_agent.SchedulerDied
        | from_agent.AskedToLeave
        | from_agent.RecordsSaved
        | from_agent.RecordsTaken
        | from_agent.Sealed
        | from_agent.DevicesFound
        | from_agent.DevicesAt,
    ):
        if message.node != peer.node:
            raise Dropped("foreign node", f"node {peer.node} sent {name} of node {message.node}")
    else:
        raise Dropped("direction", f"node {peer.node} sent {name}, which is not for the manager")


def check_agent(name: str, envelope: Envelope) -> None:
    """Raises Dropped for an agent that sends in another's name."""
    if name != envelope.process:
        raise Dropped(
            "another's name", f"agent {envelope.process[:8]} sent a message of agent {name[:8]}"
        )

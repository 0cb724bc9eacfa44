"""Who may say what: the agents that the manager knows, and what of their messages it accepts. No
socket here.

An agent is (node, incarnation): the incarnation names one process of it. The ZeroMQ routing id is
only the way back, and is taken anew from each message. Within one incarnation `seq` grows; what is
older than the newest is late and dropped.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, get_args

import zmq

from taskd.core.delivery import Inbox, Outbox
from taskd.messages import codec, from_agent
from taskd.messages.envelope import OPERATOR, Envelope

# orders that an agent may leave unacknowledged; a repair needs fewer than ten, and it acknowledges
# with each heartbeat
UNHEARD = 1000
SAY_EVERY = 60.0  # seconds between two lines about the same kind of dropped message

# what an agent may report about a rank of its own
RANK_EVENTS = frozenset(t for t in get_args(from_agent.FromAgent) if "rank" in t.__struct_fields__)

log = logging.getLogger("taskd.manager")


class Dropped(ValueError):
    """This message is not taken; `kind` is what it is counted under."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


@dataclass(frozen=True)
class Origin:
    """Where a message has come from: the way back, what its envelope says, and its first frame."""

    route: bytes
    envelope: Envelope
    frame: zmq.Frame

    @property
    def descriptor(self) -> int:
        """Of the connection."""
        return int(self.frame.get(zmq.SRCFD))


@dataclass
class Peer:
    """An agent. `node` is STANDBY for one without a node. `records`: where it listens for other
    agents; `line`: the descriptor of its connection here."""

    node: int
    agent: str
    route: bytes
    ranks: tuple[int, ...]
    seq: int
    last_heard: float
    records: tuple[str, int] = ("", 0)
    line: int = -1
    inbox: Inbox = field(default_factory=Inbox)
    outbox: Outbox[bytes] = field(default_factory=Outbox)


@dataclass
class Drops:
    """Counts what is dropped, and says so at most once a minute per kind."""

    total: Counter[str] = field(default_factory=Counter)
    _said: dict[str, float] = field(default_factory=dict)

    def add(self, kind: str, detail: str, now: float) -> None:
        self.total[kind] += 1
        if now - self._said.get(kind, float("-inf")) >= SAY_EVERY:
            self._said[kind] = now
            log.warning("dropped (%s, %d so far): %s", kind, self.total[kind], detail)


def decode(envelope: Envelope) -> Any:
    """The message in it: an operator says other things than an agent. Raises BadMessage."""
    if envelope.sender == OPERATOR:
        return codec.FROM_OPERATOR.decode(envelope.body)
    return codec.FROM_AGENT.decode(envelope.body)


def check_speaker(envelope: Envelope, speaker: str) -> None:
    """Raises Dropped for a message in another's name than that of the process at the other end of
    the connection, `speaker`."""
    if envelope.process != speaker:
        raise Dropped(
            "another's name",
            f"process {speaker[:8]} speaks as {envelope.process[:8]}: its secret is another"
            " one, or it is none of this job's",
        )


def check_envelope(envelope: Envelope, job: str) -> None:
    """Raises Dropped. The version has been checked by `unseal`."""
    if envelope.job != job:
        detail = f"an agent of job {envelope.job[:80]!r} talks to the manager of job {job!r}"
        raise Dropped("another job", f"{detail}: check its TASKD_MANAGER_ADDR and MINDX_TASK_ID")


def check_registration(event: from_agent.AgentJoined, sender: int, nodes: int) -> None:
    """Raises Dropped for a registration that contradicts itself; what contradicts the job is the
    coordinator's to refuse."""
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
    """Raises Dropped for what this agent has no business to say."""
    name = type(message).__name__
    # no isinstance: there are twenty of them, and nearly all messages are of these
    if type(message) in RANK_EVENTS:
        if message.rank not in peer.ranks:
            detail = (
                f"node {peer.node} sent {name} of rank {message.rank}; its ranks are"
                f" {list(peer.ranks)}"
            )
            raise Dropped("foreign rank", detail)
    elif isinstance(
        message,
        from_agent.AgentLeft | from_agent.StepsBegun | from_agent.RecordsSaved | from_agent.Sealed,
    ):
        if message.node != peer.node:
            raise Dropped("foreign node", f"node {peer.node} sent {name} of node {message.node}")
    else:
        raise Dropped("direction", f"node {peer.node} sent {name}, which is not for the manager")


def check_agent(name: str, envelope: Envelope) -> None:
    """Raises Dropped for an agent that speaks in another's name."""
    if name != envelope.process:
        raise Dropped(
            "another's name", f"agent {envelope.process[:8]} sent a message of agent {name[:8]}"
        )

"""Who may say what: the agents that the manager knows, and what of their messages it accepts. No
socket here.

An agent is (node, incarnation): the incarnation names one process of it. The ZeroMQ routing id is
only the way back, and is taken anew from each message. Within one incarnation `seq` grows; what is
older than the newest is late and dropped.
"""

from __future__ import annotations

import logging
import typing
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import msgpack
import zmq

from taskd.core import events as e
from taskd.core.delivery import Inbox, Outbox
from taskd.protocol import messages as m

# orders that an agent may leave unacknowledged; a repair needs fewer than ten, and it acknowledges
# with each heartbeat
UNHEARD = 1000
SAY_EVERY = 60.0  # seconds between two lines about the same kind of dropped message

# what an agent may report about a rank of its own
RANK_EVENTS = frozenset(t for t in typing.get_args(e.Event) if "rank" in t.__dataclass_fields__) - {
    e.DeviceLevel
} | {m.Injected}

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
    envelope: m.Envelope
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
    incarnation: str
    route: bytes
    ranks: tuple[int, ...]
    seq: int
    heard: float
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


_ENVELOPE = (int, str, int, str, int, bytes, int, int)


def unseal(data: bytes) -> m.Envelope:
    """`messages.unseal` for the usual case, in one comparison of types; what does not fit is
    refused there, with the reason."""
    try:
        raw = msgpack.unpackb(data, raw=False) if len(data) <= m.MAX_BYTES else None
    except Exception:
        raw = None
    if type(raw) is list and tuple(map(type, raw)) == _ENVELOPE and raw[0] == m.VERSION:
        return m.Envelope(*raw)
    return m.unseal(data)


_decode_again = lru_cache(maxsize=256)(m.decode)


def decode(body: bytes) -> Any:
    """`messages.decode`; heartbeats, nearly all of the traffic, are the same few bytes again and
    again and are decoded once."""
    return _decode_again(body) if len(body) <= 64 else m.decode(body)


def check_speaker(envelope: m.Envelope, speaker: str) -> None:
    """Raises Dropped for a message in another's name than that of the process at the other end of
    the connection, `speaker`."""
    if envelope.incarnation != speaker:
        raise Dropped(
            "another's name",
            f"process {speaker[:8]} speaks as {envelope.incarnation[:8]}: its secret is another"
            " one, or it is none of this job's",
        )


def check_envelope(envelope: m.Envelope, job: str) -> None:
    """Raises Dropped. The version has been checked by `unseal`."""
    if envelope.job != job:
        detail = f"an agent of job {envelope.job[:80]!r} talks to the manager of job {job!r}"
        raise Dropped("another job", f"{detail}: check its TASKD_MANAGER_ADDR and MINDX_TASK_ID")
    if envelope.seq < 0:
        raise Dropped("envelope", f"node {envelope.sender}: seq {envelope.seq}")


def check_registration(event: e.AgentJoined, sender: int, nodes: int) -> None:
    """Raises Dropped for a registration that contradicts itself; what contradicts the job is the
    coordinator's to refuse."""
    ranks = set(event.ranks)
    wrong = (
        f"node {event.node} in an envelope of node {sender}"
        if event.node != sender
        else (
            f"node {sender}: this job has nodes 0 to {nodes - 1}: check node_nums"
            if not 0 <= sender < nodes
            else (
                f"{len(event.incarnations)} incarnations for {len(event.ranks)} ranks"
                if event.incarnations and len(event.incarnations) != len(event.ranks)
                else (
                    "a rank outside `ranks` in joined, waiting, dead, new or ready"
                    if not ranks.issuperset(
                        (*event.joined, *event.waiting, *event.dead, *event.new, *event.ready)
                    )
                    else (
                        f"store port {event.store[1]}, allowed is 0 to 65535"
                        if not 0 <= event.store[1] <= 65535 or len(event.store[0]) > 255
                        else (
                            f"records port {event.records[1]}, allowed is 0 to 65535"
                            if not 0 <= event.records[1] <= 65535 or len(event.records[0]) > 255
                            else (
                                "a negative epoch, generation, pause or incarnation"
                                if min(
                                    (
                                        event.epoch,
                                        event.generation,
                                        event.pause,
                                        *event.incarnations,
                                    )
                                )
                                < 0
                                else ""
                            )
                        )
                    )
                )
            )
        )
    )
    if wrong:
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
    elif isinstance(message, e.AgentLeft | e.StepsBegun | e.RecordsSaved | e.Sealed):
        if message.node != peer.node:
            raise Dropped("foreign node", f"node {peer.node} sent {name} of node {message.node}")
    else:
        raise Dropped("direction", f"node {peer.node} sent {name}, which is not for the manager")


def check_agent(name: str, envelope: m.Envelope) -> None:
    """Raises Dropped for an agent that speaks in another's name."""
    if name != envelope.incarnation:
        raise Dropped(
            "another's name", f"agent {envelope.incarnation[:8]} sent a message of agent {name[:8]}"
        )

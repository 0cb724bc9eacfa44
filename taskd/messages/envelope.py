"""The envelope that names a message's sender, between the manager and agents or operators.

Agent and rank share a local socket whose peer is known, so they send the bare message."""

from __future__ import annotations

import msgspec

from taskd.messages.codec import MAX_BYTES, BadMessage
from taskd.messages.refusal import explained
from taskd.messages.values import Job, Name, NodeOrStandby, Number, Seconds, SignedNumber

VERSION = 8
OPERATOR = -2  # sender of an envelope from `taskd.control`; -1 is the manager
STANDBY = -3  # sender of an envelope from an agent that has no node yet


class Envelope(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Wraps a message between the manager and an agent or operator. `sender` is the node, -1 for
    the manager, OPERATOR or STANDBY; `process` names the process, is the `agent` of messages, and
    is derived from its key (protocol/keys.py): the manager accepts no other name from it. `at`:
    when the message was first sent, on the sender's monotonic clock; see manager.clocks."""

    version: int
    job: Job
    sender: NodeOrStandby
    process: Name
    seq: Number
    body: bytes
    term: Number = 0  # of the manager; see core.election
    # of a message that must not be lost, see protocol.delivery; 0: the message may be lost
    number: SignedNumber = 0
    at: Seconds = 0.0


class _Head(msgspec.Struct, frozen=True, array_like=True):
    """The field that all versions have in common."""

    version: int


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Envelope)
_head = msgspec.msgpack.Decoder(_Head)


def seal(envelope: Envelope) -> bytes:
    return _encoder.encode(envelope)


def unseal(data: bytes) -> Envelope:
    """Decode an envelope. Raises BadMessage, also for another protocol version."""
    if len(data) > MAX_BYTES:
        raise BadMessage(f"{len(data)} bytes, the limit is {MAX_BYTES}")
    try:
        envelope = _decoder.decode(data)
    except Exception as error:  # several kinds, RecursionError among them, for hostile input
        _check_version(data)
        raise BadMessage(
            explained(data, error, "an envelope", Envelope.__struct_fields__)
        ) from None
    if envelope.version != VERSION:
        _check_version(data)
    return envelope


def _check_version(data: bytes) -> None:
    """Raise BadMessage for an envelope of another version, which may have other fields."""
    try:
        version = _head.decode(data).version
    except Exception:
        return
    if version != VERSION:
        raise BadMessage(
            f"protocol version {version}, this side speaks {VERSION}: install the same taskd on all"
            " nodes"
        )

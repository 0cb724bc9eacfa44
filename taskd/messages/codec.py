"""Encoding messages as msgpack, and one decoder per direction, which knows no other messages.

msgspec checks sizes, types and ranges against the declarations while it decodes. Anything that
does not fit is a BadMessage, which the shells count and drop. No input is ever executed.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from taskd.messages.between_agents import FromKeeper, ToKeeper
from taskd.messages.from_agent import FromAgent
from taskd.messages.from_operator import FromOperator
from taskd.messages.from_rank import FromRank, Hello
from taskd.messages.refusal import explained
from taskd.messages.to_agent import ToAgent
from taskd.messages.to_operator import ToOperator
from taskd.messages.to_rank import ToRank
from taskd.messages.values import Message

MAX_BYTES = 1 << 20  # also ZMQ_MAXMSGSIZE: the largest real message is a table of a few kB

T = TypeVar("T")


def _exact(value: Any) -> Any:
    """Convert subclasses of str, int and float: numpy.float64 is a float."""
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    raise TypeError(f"{type(value).__name__} cannot be a field of a message")


_encoder = msgspec.msgpack.Encoder(enc_hook=_exact)


class BadMessage(ValueError):
    """The bytes are not a message of this direction; the text says what is wrong with them."""


class Decoder(Generic[T]):
    """Decodes the messages of `union`. `direction`: sender and receiver, in words."""

    def __init__(self, direction: str, union: Any) -> None:
        self.direction, self.union = direction, union
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(union)

    def decode(self, data: bytes, limit: int = MAX_BYTES) -> T:
        """Decode the message in `data`, of at most `limit` bytes. Raises BadMessage."""
        if len(data) > limit:
            raise BadMessage(f"{len(data)} bytes, the limit is {limit}")
        try:
            return self._decoder.decode(data)
        except Exception as error:  # several kinds, RecursionError among them, for hostile input
            raise BadMessage(explained(data, error, f"a message {self.direction}")) from None


HELLO = Decoder[Hello]("first from a rank to its agent", Hello)
FROM_RANK = Decoder[FromRank]("from a rank to its agent", FromRank)
TO_RANK = Decoder[ToRank]("from an agent to a rank", ToRank)
FROM_AGENT = Decoder[FromAgent]("from an agent to the manager", FromAgent)
TO_AGENT = Decoder[ToAgent]("from the manager to an agent", ToAgent)
FROM_OPERATOR = Decoder[FromOperator]("from an operator to the manager", FromOperator)
TO_OPERATOR = Decoder[ToOperator]("from the manager to an operator", ToOperator)
TO_KEEPER = Decoder[ToKeeper]("from an agent to the keeper of its records", ToKeeper)
FROM_KEEPER = Decoder[FromKeeper]("from a keeper of records", FromKeeper)


def encode(message: Message) -> bytes:
    """Encode a message. Raises TypeError for anything else (a bug)."""
    if not isinstance(message, Message):
        raise TypeError(f"{type(message).__name__} is not a message")
    return _encoder.encode(message)

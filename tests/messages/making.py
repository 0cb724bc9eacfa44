"""Generates any instance of a message from its declaration, and lists the directions."""

from __future__ import annotations

from typing import get_args

import msgspec
from hypothesis import strategies as st

from taskd.messages import codec, from_rank, values
from taskd.messages.envelope import VERSION, Envelope

DECODERS = {
    "first from a rank": codec.HELLO,
    "from a rank": codec.FROM_RANK,
    "to a rank": codec.TO_RANK,
    "from an agent": codec.FROM_AGENT,
    "to an agent": codec.TO_AGENT,
    "from an operator": codec.FROM_OPERATOR,
    "to an operator": codec.TO_OPERATOR,
    "to a keeper": codec.TO_KEEPER,
    "from a keeper": codec.FROM_KEEPER,
}


def members(decoder):
    """Return the messages of a direction."""
    return set(get_args(decoder.union) or (decoder.union,))


EVERY_TYPE = sorted(set().union(*map(members, DECODERS.values())), key=lambda t: t.__name__)


def decoder_of(cls):
    """Return a decoder that accepts the message."""
    return next(d for d in DECODERS.values() if cls in members(d))


def made(cls):
    """Generate any instance of a type."""
    info = msgspec.inspect.type_info(cls)
    return st.builds(cls, **{f.name: value(f.type) for f in info.fields})


def value(kind):
    match kind:
        case msgspec.inspect.IntType():
            return st.integers(
                -(2**63) if kind.ge is None else kind.ge,
                kind.lt - 1 if kind.lt is not None else 2**64 - 1 if kind.le is None else kind.le,
            )
        case msgspec.inspect.FloatType():
            return st.floats(kind.ge, kind.le, allow_nan=False)
        case msgspec.inspect.StrType():
            return st.text(max_size=min(kind.max_length or 20, 20))
        case msgspec.inspect.BytesType():
            return st.binary(max_size=20)
        case msgspec.inspect.BoolType():
            return st.booleans()
        case msgspec.inspect.LiteralType():
            return st.sampled_from(kind.values)
        case msgspec.inspect.NoneType():
            return st.none()
        case msgspec.inspect.UnionType():
            return st.one_of(*map(value, kind.types))
        case msgspec.inspect.TupleType():
            return st.tuples(*map(value, kind.item_types))
        case msgspec.inspect.VarTupleType():
            return st.lists(value(kind.item_type), max_size=min(kind.max_length or 4, 4)).map(tuple)
        case msgspec.inspect.FrozenSetType():
            return st.frozensets(value(kind.item_type), max_size=4)
        case msgspec.inspect.DictType():
            return st.dictionaries(value(kind.key_type), value(kind.value_type), max_size=4)
        case msgspec.inspect.NamedTupleType():
            return st.builds(kind.cls, *(value(f.type) for f in kind.fields))
        case msgspec.inspect.StructType():
            return made(kind.cls)
    raise TypeError(f"{kind}: teach this module to make it")


EVERY = st.one_of(*(st.deferred(lambda t=t: made(t)) for t in EVERY_TYPE))
POSITION = values.Position(3, 3, frozenset({2, 3}))
INTERRUPTED = from_rank.RankInterrupted(1, 0, 7, POSITION)


def enveloped(body, **changes):
    return msgspec.structs.replace(Envelope(VERSION, "job", 0, "0" * 32, 1, body), **changes)

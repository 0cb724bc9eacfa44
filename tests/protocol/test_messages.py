"""What is read from the network is a message or a BadMessage, whatever the bytes are."""

from __future__ import annotations

import random

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskd.core import commands, events, repair
from taskd.protocol import messages as m

NUMBER = st.integers(-(2**63), 2**64 - 1)
REAL = st.floats(allow_nan=False)
PLAIN = {int: NUMBER, float: REAL, str: st.text(max_size=20), bytes: st.binary(max_size=20)}
EVERY = st.one_of(*(st.deferred(lambda t=t: made(t)) for t in m.TYPES.values()))


def made(cls):
    """Any instance of a message type, from its annotations."""
    return st.builds(cls, **{name: value(hint) for name, hint in m._hints(cls).items()})


def value(hint):
    if hint in PLAIN:
        return PLAIN[hint]
    if hint is bool:
        return st.booleans()
    if hint is events.Position or hint is repair.Plan:
        return made(hint)
    args = getattr(hint, "__args__", ())
    if type(None) in args:
        return st.none() | value(args[0])
    origin = getattr(hint, "__origin__", None)
    if origin is tuple and args[-1] is Ellipsis:
        return st.lists(value(args[0]), max_size=4).map(tuple)
    if origin is tuple:
        return st.tuples(*map(value, args))
    if origin is frozenset:
        return st.frozensets(value(args[0]), max_size=4)
    if origin is dict:
        return st.dictionaries(value(args[0]), value(args[1]), max_size=4)
    raise TypeError(f"{hint}: teach this test to make it")


@pytest.mark.parametrize("name", sorted(m.TYPES))
def test_every_message_comes_back_as_it_was(name):
    @settings(max_examples=30, deadline=None)
    @given(made(m.TYPES[name]))
    def back(message):
        assert m.decode(m.encode(message)) == message

    back()


@settings(deadline=None)
@given(st.text(max_size=20), NUMBER, st.text(max_size=20), NUMBER, st.binary(max_size=50))
def test_every_envelope_comes_back_as_it_was(job, sender, incarnation, seq, body):
    envelope = m.Envelope(m.VERSION, job, sender, incarnation, seq, body)
    assert m.unseal(m.seal(envelope)) == envelope


def read(data):
    """Decode, letting nothing but BadMessage through; what was read must be a proper message."""
    for reader in (m.decode, m.unseal):
        try:
            message = reader(data)
        except m.BadMessage:
            continue
        if reader is m.decode:
            # read back from its own bytes: every field has its type
            assert m.encode(m.decode(m.encode(message))) == m.encode(message)


@settings(max_examples=400, deadline=None)
@given(st.binary(max_size=300))
def test_random_bytes(data):
    read(data)


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | NUMBER
    | REAL
    | st.text(max_size=8)
    | st.binary(max_size=8)
    | st.sampled_from(sorted(m.TYPES)),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(st.text(max_size=8) | st.just("t") | NUMBER, inner, max_size=5)
    ),
    max_leaves=20,
)


@settings(max_examples=300, deadline=None)
@given(ANYTHING)
def test_any_msgpack(data):
    read(msgpack.packb(data))


@settings(max_examples=400, deadline=None)
@given(EVERY, ANYTHING, st.randoms(use_true_random=False))
def test_one_field_replaced(message, thing, choose):
    raw = msgpack.unpackb(m.encode(message))
    raw[choose.choice(sorted(raw))] = thing
    read(msgpack.packb(raw))


@settings(max_examples=400, deadline=None)
@given(EVERY, st.randoms(use_true_random=False))
def test_mutated_messages(message, choose: random.Random):
    envelope = m.Envelope(m.VERSION, "job", 0, "0" * 32, 1, m.encode(message))
    for original in (envelope.body, m.seal(envelope)):
        data = bytearray(original)
        for _ in range(choose.randint(1, 4)):
            position = choose.randrange(len(data) + 1)
            data[position : position + choose.randint(0, 2)] = choose.randbytes(
                choose.randint(0, 2)
            )
        read(bytes(data))


@pytest.mark.parametrize("depth", [10, 500, 1000, 100_000])
@pytest.mark.parametrize("opening", [b"\x91", b"\x81\xa1t"], ids=["lists", "maps"])
def test_deep_nesting(depth, opening):
    read(opening * depth + b"\x00")
    read(b"\x82\xa1t\xa9Heartbeat\xabranks_alive" + opening * depth + b"\x00")


@pytest.mark.parametrize(
    "claim",
    [
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
    ],
)
def test_a_claimed_size_costs_nothing(claim):
    read(claim)


def test_too_large():
    with pytest.raises(m.BadMessage, match="at most"):
        m.decode(b"\x00" * (m.MAX_BYTES + 1))


def test_another_version_says_what_to_do():
    with pytest.raises(m.BadMessage, match="same taskd on all nodes"):
        m.unseal(msgpack.packb([m.VERSION + 1, "job", 0, "i", 1, b""]))


@pytest.mark.parametrize(
    "thing", [repair.Refusal("x"), m.Envelope(1, "", 0, "", 0, b""), object(), None]
)
def test_what_is_not_a_message_is_a_bug(thing):
    with pytest.raises(TypeError):
        m.encode(thing)


def test_a_bool_is_not_a_number_and_a_number_is_not_a_bool():
    for name, fields in (("Heartbeat", {"ranks_alive": True}), ("End", {"ok": 1, "reason": ""})):
        with pytest.raises(m.BadMessage):
            m.decode(msgpack.packb({"t": name, **fields}))


def test_all_of_events_and_commands_are_known():
    own = {
        m.Heartbeat,
        m.Who,
        m.Refused,
        m.RankHello,
        m.AttendantHello,
        m.Here,
        m.Inject,
        m.Injected,
        m.Unprotected,
        m.TakeUp,
    }
    own |= {
        m.Arrived,
        m.UnderWay,
        m.Standing,
        m.Claim,
        m.Vote,
        m.RosterIs,
        m.RosterKept,
        m.Keep,
        m.Kept,
        m.Fetch,
        m.Fetched,
    }
    own |= {m.CodeTold, m.ReleaseDevice, m.StatusAsked, m.May, m.Permit, m.Heard}
    assert set(m.TYPES.values()) == {*events.Event.__args__, *commands.Command.__args__, *own}


def spoiled(dice, raw):
    """`raw`, or some part of it, with another value, a part more or a part less."""
    junk = (None, True, 0, -1, 1.5, "x", b"x", [], [1], ["x", 1], {}, {"x": 1})
    choice = dice.random()
    if isinstance(raw, dict) and raw and choice < 0.8:
        name = dice.choice(sorted(raw, key=str))
        if choice < 0.05:
            return {k: v for k, v in raw.items() if k != name}
        return raw | ({"x": 1} if choice < 0.1 else {name: spoiled(dice, raw[name])})
    if isinstance(raw, list) and raw and choice < 0.8:
        at = dice.randrange(len(raw))
        return [*raw[:at], spoiled(dice, raw[at]), *raw[at + 1 :]]
    return dice.choice(junk)


@pytest.mark.parametrize("name", sorted(m.TYPES))
def test_the_quick_reader_takes_what_the_thorough_one_takes(name):
    @settings(max_examples=60, deadline=None)
    @given(made(m.TYPES[name]), st.integers(0, 2**32))
    def same(message, seed):
        raw = spoiled(random.Random(seed), m._plain(message))
        try:
            thorough = m._build(m.TYPES[name], raw, name)
        except m.BadMessage:
            with pytest.raises((m._Unfit, KeyError)):
                m._reader(m.TYPES[name])(raw)
        else:
            assert m._reader(m.TYPES[name])(raw) == thorough

    same()

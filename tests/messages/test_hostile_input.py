"""Any bytes from the network decode to a message or raise BadMessage."""

from __future__ import annotations

import random
import tracemalloc
import typing

import msgpack
import msgspec
import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskd.messages import codec, from_agent, to_agent, to_rank, values
from taskd.messages.envelope import STANDBY, VERSION, Envelope, seal, unseal

from .making import DECODERS, EVERY, EVERY_TYPE, INTERRUPTED, POSITION, decoder_of, enveloped

NUMBER = st.integers(-(2**63), 2**64 - 1)
REAL = st.floats()
ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | NUMBER
    | REAL
    | st.text(max_size=8)
    | st.binary(max_size=8)
    | st.sampled_from([cls.__name__ for cls in EVERY_TYPE]),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(st.text(max_size=8) | st.just("type") | NUMBER, inner, max_size=5)
    ),
    max_leaves=20,
)


def read(data):
    """Decode, allowing no exception but BadMessage; the result must be a valid message."""
    for decoder in DECODERS.values():
        try:
            message = decoder.decode(data)
        except codec.BadMessage as error:
            assert len(str(error)) < 1000
            continue
        assert decoder.decode(codec.encode(message)) == message  # every field has its type
    try:
        envelope = unseal(data)
    except codec.BadMessage as error:
        assert len(str(error)) < 1000
    else:
        assert unseal(seal(envelope)) == envelope


@settings(max_examples=400, deadline=None)
@given(st.binary(max_size=300))
def test_random_bytes(data):
    read(data)


@settings(max_examples=300, deadline=None)
@given(ANYTHING)
def test_any_msgpack(data):
    read(msgpack.packb(data))


@settings(max_examples=400, deadline=None)
@given(EVERY, ANYTHING, st.randoms(use_true_random=False))
def test_one_field_replaced(message, thing, choose):
    raw = msgpack.unpackb(codec.encode(message))
    raw[choose.choice(sorted(raw))] = thing
    read(msgpack.packb(raw))


@settings(max_examples=400, deadline=None)
@given(EVERY, ANYTHING, st.randoms(use_true_random=False))
def test_one_field_twice(message, thing, choose):
    raw = msgpack.unpackb(codec.encode(message))
    pairs = [*raw.items()]
    pairs.insert(choose.randrange(len(pairs) + 1), (choose.choice(sorted(raw)), thing))
    packer = msgpack.Packer()
    read(packer.pack_map_pairs(pairs))


@settings(max_examples=400, deadline=None)
@given(EVERY, st.randoms(use_true_random=False))
def test_mutated_messages(message, choose: random.Random):
    body = codec.encode(message)
    for original in (body, seal(enveloped(body))):
        data = bytearray(original)
        for _ in range(choose.randint(1, 4)):
            position = choose.randrange(len(data) + 1)
            data[position : position + choose.randint(0, 2)] = choose.randbytes(
                choose.randint(0, 2)
            )
        read(bytes(data))


@pytest.mark.parametrize("depth", [10, 500, 1000, 100_000])
@pytest.mark.parametrize("opening", [b"\x91", b"\x81\xa4type"], ids=["lists", "maps"])
def test_deep_nesting(depth, opening):
    read(opening * depth + b"\x00")
    read(b"\x82\xa4type\xa9Heartbeat\xabranks_alive" + opening * depth + b"\x00")
    read(b"\x96" + opening * depth + b"\x00" * 6)


@pytest.mark.parametrize(
    "claim",
    [
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xc9\xff\xff\xff\xff\x05",
    ],
)
def test_a_claimed_size_costs_nothing(claim):
    read(claim)
    read(b"\x82\xa4type\xabAgentJoined\xa5ranks" + claim)
    read(b"\x82\xa4type\xa8RosterIs\xa7members" + claim)


@pytest.mark.parametrize(
    "value",
    [b"x" * (64 << 20), [b"x" * (64 << 20)], msgpack.ExtType(1, b"x" * (64 << 20))],
    ids=type,
)
def test_only_the_beginning_of_a_long_value_is_looked_at(value):
    data = msgpack.packb({"type": "Fetch", "job": "j", "node": value})
    tracemalloc.start()
    with pytest.raises(codec.BadMessage, match="^Fetch.node: "):
        codec.TO_KEEPER.decode(data, 1 << 30)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 100 << 20, "the value as text is four times as long"


@pytest.mark.parametrize("name", ["type", "ranks_alive"])
def test_a_long_word_is_shortened_in_the_reason(name):
    read(msgpack.packb({"type": "Heartbeat", "ranks_alive": 1, name: "x" * 900_000}))
    read(msgpack.packb({"type": "Heartbeat", "ranks_alive": 1, "x" * 900_000: 1}))
    pairs = [("type", "Heartbeat"), ("type", "x" * 900_000), ("ranks_alive", "x" * 100_000)]
    read(msgpack.Packer().pack_map_pairs(pairs))
    read(msgpack.Packer().pack_map_pairs([("type", "Heartbeat"), ("type", [[[1]]]), ("x", 1)]))


@pytest.mark.parametrize("read", [*(d.decode for d in DECODERS.values()), unseal])
def test_too_large(read):
    with pytest.raises(codec.BadMessage, match="the limit is"):
        read(b"\x00" * (codec.MAX_BYTES + 1))


@pytest.mark.parametrize(
    "data", [[VERSION + 1, "job", 0, "i", 1, b""], [VERSION - 1], [VERSION + 1, {"of": "its own"}]]
)
def test_another_version_says_what_to_do(data):
    with pytest.raises(codec.BadMessage, match="same taskd on all nodes"):
        unseal(msgpack.packb(data))


@pytest.mark.parametrize("thing", [POSITION, Envelope(1, "", 0, "", 0, b""), object(), None])
def test_what_is_not_a_message_is_a_bug(thing):
    with pytest.raises(TypeError):
        codec.encode(thing)


def test_words_and_numbers_may_be_of_a_kind_of_their_own():
    class Word(str):
        pass

    said = from_agent.RankStalled(0, 0, 3, numpy.float64(1.5))
    assert codec.FROM_AGENT.decode(codec.encode(said)) == said
    died = from_agent.RankDied(0, 0, Word("x"))
    assert type(codec.FROM_AGENT.decode(codec.encode(died)).cause) is str
    with pytest.raises(TypeError):
        codec.encode(from_agent.RankDied(0, 0, object()))


# -- shapes ----------------------------------------------------------------------------------------


def spoiled(message, **fields):
    """Encode `message` with some values replaced by values of any type."""
    return msgpack.packb({**msgpack.unpackb(codec.encode(message)), **fields})


DIED = from_agent.RankDied(0, 0, "x")
JOINED = from_agent.AgentJoined(0, (0, 1), ("host", 1))
STALLED = from_agent.RankStalled(0, 0, 3, 1.0)
RESTART = to_agent.RestartAll(((0, 0),), "x", ("host", 1), 1)
AT = msgpack.unpackb(codec.encode(INTERRUPTED))["position"]


@pytest.mark.parametrize(
    ("message", "field", "value"),
    [
        (from_agent.Heartbeat(1), "ranks_alive", True),
        (from_agent.Heartbeat(1), "ranks_alive", -1),
        (from_agent.Heartbeat(1), "ranks_alive", 1.0),
        (from_agent.AgentLeft(0, True), "ok", 1),
        (DIED, "rank", -1),
        (DIED, "rank", values.NODES * values.ROOM),
        (DIED, "incarnation", -1),
        (DIED, "incarnation", 2**63),
        (DIED, "cause", "x" * 65_537),
        (DIED, "cause", b"x"),
        (DIED, "cause", None),
        (DIED, "position", {**AT, "step": -1}),
        (DIED, "position", {**AT, "final": list(range(65))}),
        (DIED, "position", {**AT, "x": 1}),
        (from_agent.RankEnded(0, 0), "step", -2),
        (STALLED, "step", -1),
        (STALLED, "seconds", -0.5),
        (STALLED, "seconds", float("nan")),
        (STALLED, "seconds", float("inf")),
        (STALLED, "seconds", "1"),
        (JOINED, "node", values.NODES),
        (JOINED, "ranks", list(range(values.ROOM + 1))),
        (JOINED, "ranks", [0, -1]),
        (JOINED, "ranks", 0),
        (JOINED, "store", ["h" * 256, 1]),
        (JOINED, "store", ["h", 65_536]),
        (JOINED, "records", ["h", -1]),
        (JOINED, "records", ["h", 1, 2]),
        (JOINED, "epoch", -1),
        (JOINED, "generation", -1),
        (JOINED, "interruption", -1),
        (JOINED, "incarnations", [0, -1]),
        (JOINED, "keepers", (-1,)),
        (JOINED, "agent", "x" * 129),
        (from_agent.StandbyJoined("a", 1), "ranks", 0),
        (from_agent.StandbyJoined("a", 1), "ranks", values.ROOM + 1),
        (from_agent.VoterState(0, "", (0, 0), {}, True), "stamp", [0]),
        (from_agent.VoterState(0, "", (0, 0), {}, True), "members", {"a": [STANDBY - 1, ["", 0]]}),
        (from_agent.VoterState(0, "", (0, 0), {}, True), "members", {"a": STANDBY}),
        (from_agent.VoterState(0, "", (0, 0), {}, True), "members", {1: [1, ["", 0]]}),
        (to_rank.Inject("r", 0, "memory", {}), "options", {str(n): "" for n in range(65)}),
        (RESTART, "epochs", [[0, -1]]),
    ],
    ids=lambda value: repr(value)[:40] if not isinstance(value, values.Message) else None,
)
def test_what_is_out_of_range_is_refused_and_named(message, field, value):
    decoder = decoder_of(type(message))
    assert decoder.decode(codec.encode(message)) == message
    with pytest.raises(codec.BadMessage, match=rf"^{type(message).__name__}\.{field}") as told:
        decoder.decode(spoiled(message, **{field: value}))
    assert "Expected" in str(told.value) or "unknown field" in str(told.value)


@pytest.mark.parametrize("cls", EVERY_TYPE, ids=lambda cls: cls.__name__)
def test_a_field_too_many_or_too_few_is_refused(cls):
    decoder, info = decoder_of(cls), msgspec.inspect.type_info(cls)
    with pytest.raises(codec.BadMessage, match=f"^{cls.__name__}: Object contains unknown field"):
        decoder.decode(msgpack.packb({"type": cls.__name__, "x": 1}))
    if any(field.required for field in info.fields):
        with pytest.raises(codec.BadMessage, match=f"^{cls.__name__}: Object missing required"):
            decoder.decode(msgpack.packb({"type": cls.__name__}))


@pytest.mark.parametrize(
    "changes",
    [{"seq": -1}, {"sender": -4}, {"term": -1}, {"process": "x" * 129}, {"sender": values.NODES}],
    ids=str,
)
def test_an_envelope_out_of_range_is_refused_and_the_field_named(changes):
    with pytest.raises(codec.BadMessage, match=f"an envelope, {next(iter(changes))}: "):
        unseal(seal(enveloped(b"", **changes)))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (
            {
                "type": "RankInterrupted",
                "rank": 0,
                "incarnation": 0,
                "interruption": 1,
                "position": {"step": "x"},
            },
            "RankInterrupted.position.step: 'x': Expected `int`, got `str`",
        ),
        ({"type": "End"}, "not a message from an agent to the manager: 'End': Invalid value 'End'"),
        ({"x": 1}, "not a message from an agent to the manager: {'x': 1}: Object missing"),
        ([1], "not a message from an agent to the manager: [1]: Expected `object`, got `array`"),
        ({"type": "Heartbeat"}, "Heartbeat: Object missing required field `ranks_alive`"),
    ],
)
def test_the_reason_names_the_message_the_field_the_value_and_what_is_expected(data, reason):
    with pytest.raises(codec.BadMessage) as told:
        codec.FROM_AGENT.decode(msgpack.packb(data))
    assert str(told.value).startswith(reason)


def test_every_number_and_every_text_has_bounds():
    """Except for the manager's texts about a whole job (values.Report), and page addresses."""

    def unbounded(cls, kind):
        match kind:
            case msgspec.inspect.IntType():
                return kind.ge is None or (kind.le is None and kind.lt is None)
            case msgspec.inspect.FloatType():
                return kind.ge is None or kind.le is None
            case msgspec.inspect.StrType():
                return kind.max_length is None
            case msgspec.inspect.UnionType():
                return any(unbounded(cls, k) for k in kind.types)
            case msgspec.inspect.TupleType():
                return any(unbounded(cls, k) for k in kind.item_types)
            case msgspec.inspect.VarTupleType() | msgspec.inspect.FrozenSetType():
                return unbounded(cls, kind.item_type)
            case msgspec.inspect.DictType():
                return unbounded(cls, kind.key_type) or unbounded(cls, kind.value_type)
        return False

    said_by_others = {
        cls
        for name, decoder in DECODERS.items()
        if name.startswith("from") or name == "to a keeper"
        for cls in typing.get_args(decoder.union)
    }
    found = {
        f"{cls.__name__}.{field.name}"
        for cls in [*said_by_others, values.Position]
        for field in msgspec.inspect.type_info(cls).fields
        if unbounded(cls, field.type)
    }
    assert found == {"RankFaulted.page"}

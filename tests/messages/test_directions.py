"""Each direction has its own messages, and its decoder knows no others."""

from __future__ import annotations

import typing

import msgspec
import pytest
from hypothesis import given, settings

from taskd.core import commands, events
from taskd.messages import between_agents, codec, from_rank, to_agent, to_rank
from taskd.messages.envelope import seal, unseal
from taskd.messages.values import Message, Position

from .making import DECODERS, EVERY_TYPE, enveloped, made, members

# Relayed messages, and those that go both ways; no other message has two directions.
FORWARDED = members(codec.FROM_RANK) - {
    from_rank.Progress,
    from_rank.StepsPlanned,
}  # relayed unchanged by the agent
PASSED_ON = members(codec.TO_RANK) - {to_rank.TakeUp}
IN_TWO = {
    **{cls: {"from a rank", "from an agent"} for cls in FORWARDED},
    **{cls: {"to a rank", "to an agent"} for cls in PASSED_ON},
    to_rank.Inject: {"from an operator", "to an agent", "to a rank"},
    to_agent.Ack: {"from an agent", "to an agent"},
    between_agents.Keep: {"to a keeper", "from a keeper"},
}


@pytest.mark.parametrize("cls", EVERY_TYPE, ids=lambda cls: cls.__name__)
def test_a_message_is_taken_in_its_own_directions_alone(cls):
    taking = {name for name, decoder in DECODERS.items() if cls in members(decoder)}
    assert len(taking) == 1 or taking == IN_TWO[cls]

    @settings(max_examples=20, deadline=None)
    @given(made(cls))
    def back(message):
        data = codec.encode(message)
        for name, decoder in DECODERS.items():
            if name in taking:
                assert decoder.decode(data) == message
                continue
            with pytest.raises(codec.BadMessage, match=f"'{cls.__name__}'"):
                decoder.decode(data)

    back()


@settings(max_examples=100, deadline=None)
@given(made(type(enveloped(b""))))
def test_every_envelope_comes_back_as_it_was(envelope):
    envelope = enveloped(
        envelope.body, job=envelope.job, sender=envelope.sender, number=envelope.number
    )
    assert unseal(seal(envelope)) == envelope


@pytest.mark.parametrize("cls", EVERY_TYPE, ids=lambda cls: cls.__name__)
def test_messages_are_frozen_tagged_and_strict(cls):
    config = cls.__struct_config__
    assert issubclass(cls, Message) and config.frozen and config.forbid_unknown_fields
    assert config.tag == cls.__name__ and config.tag_field == "type"


def test_every_message_is_one_of_a_direction_and_has_a_name_of_its_own():
    assert set(Message.__subclasses__()) == set(EVERY_TYPE)
    assert len({cls.__name__ for cls in EVERY_TYPE}) == len(EVERY_TYPE)


def test_what_the_manager_finds_out_or_does_by_itself_does_not_travel():
    own = {
        cls
        for union in (events.Event, commands.Command)
        for cls in typing.get_args(union)
        if not issubclass(cls, Message)
    }
    assert {"AgentLost", "DeviceLevel", "Tick", "Note", "Closed"} <= {c.__name__ for c in own}
    for cls in own:
        with pytest.raises(codec.BadMessage):
            codec.FROM_AGENT.decode(msgspec.msgpack.encode({"type": cls.__name__}))


def test_core_takes_what_ranks_agents_and_operators_say():
    said = members(codec.FROM_AGENT) | members(codec.FROM_OPERATOR)
    assert {c for c in typing.get_args(events.Event) if issubclass(c, Message)} <= said
    ordered = members(codec.TO_AGENT) | members(codec.TO_OPERATOR)
    assert {c for c in typing.get_args(commands.Command) if issubclass(c, Message)} <= ordered


def test_a_decoder_takes_the_limit_that_it_is_given():
    keep = codec.encode(between_agents.Keep("job", 0, 0, 1, 3, 1, False, b"x" * codec.MAX_BYTES))
    with pytest.raises(codec.BadMessage, match="the limit is 1048576"):
        codec.TO_KEEPER.decode(keep)
    assert len(codec.TO_KEEPER.decode(keep, 1 << 30).payload) == codec.MAX_BYTES


def test_a_position_with_another_value():
    at = Position(3, 3, frozenset({2, 3}))
    assert at.but(clean=None) == Position(3, None, frozenset({2, 3}))
    assert at.clean == 3 and hash(at) != hash(at.but(step=4))
    with pytest.raises(AttributeError):
        at.step = 5

"""Over a connection that breaks anywhere, every message arrives once and in order."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskd.protocol.delivery import Inbox, Outbox


def test_what_is_unheard_is_said_again_over_a_new_connection():
    outbox, inbox = Outbox(), Inbox()
    for number in (1, 2, 3):
        outbox.add(f"message {number}", number)
    assert inbox.take(1)
    assert outbox.acknowledge(inbox.number) == []  # over the same connection the rest is in flight
    outbox.in_step = False
    assert outbox.acknowledge(inbox.number) == [(2, "message 2"), (3, "message 3")]
    assert not outbox.add("message 4", 4) or outbox.in_step
    assert outbox.acknowledge(4) == [] and not outbox.kept


def test_nothing_is_sent_before_it_is_known_how_far_the_other_end_has_heard():
    outbox = Outbox()
    outbox.in_step = False
    assert not outbox.add("a", 1)
    assert outbox.acknowledge(0) == [(1, "a")]
    assert outbox.add("b", 2)


def test_told_the_same_twice_the_rest_is_lost():
    outbox = Outbox()
    outbox.add("a", 1)
    assert outbox.acknowledge(0) == []
    assert outbox.acknowledge(0) == [(1, "a")]


@pytest.mark.parametrize(
    ("gaps", "numbers", "taken"),
    [
        (False, [1, 2, 2, 1, 3], [1, 2, 3]),
        (False, [1, 3, 2], [1, 2]),  # 3 arrives again
        (True, [1, 3, 2, 7], [1, 3, 7]),
        (False, [1, -5, 6, 5, -5], [1, -5, 6]),  # a new series begins at 5
        (False, [4, -3, 4], [-3, 4]),
    ],
)
def test_numbers(gaps, numbers, taken):
    inbox = Inbox(gaps=gaps)
    assert [n for n in numbers if inbox.take(n)] == taken


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.sampled_from(["say", "say", "arrive", "arrive", "break", "connect", "ask"]), max_size=80
    ),
    st.randoms(use_true_random=False),
)
def test_everything_arrives_once_and_in_order(acts, dice):
    outbox, inbox, line, paused, got = Outbox(), Inbox(), deque(), deque(), []
    up, said = True, 0

    def send(number, what):
        # without a connection it waits here, and may go over the next one
        (line if up else paused).append((number, what))

    def arrive():
        number, what = line.popleft()
        if inbox.take(number):
            got.append(what)

    def connect():
        nonlocal up
        up = True
        line.extend(paused if dice.random() < 0.5 else ())
        paused.clear()
        outbox.in_step = False
        for number, what in outbox.acknowledge(inbox.number):
            send(number, what)

    for act in acts:
        if act == "say":
            said += 1
            if outbox.add(said, said):
                send(said, said)
        elif act == "arrive" and line:
            arrive()
        elif act == "break" and up:
            up = False
            line.clear()
        elif act == "connect" and not up:
            connect()
        elif act == "ask" and up:
            for number, what in outbox.acknowledge(inbox.number):
                send(number, what)
        assert got == list(range(1, len(got) + 1))
    if not up:
        connect()
    for _ in range(3):
        while line:
            arrive()
        for number, what in outbox.acknowledge(inbox.number):
            send(number, what)
    assert got == list(range(1, said + 1)) and not outbox.kept

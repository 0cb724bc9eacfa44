"""Whether an agent that is not connected is gone: its machine is asked."""

from __future__ import annotations

import socket
import time

import pytest
import zmq

from taskd.protocol.liveness import Gone, LivenessProbe


def found(liveness: LivenessProbe, limit: float = 5.0) -> list:
    end = time.monotonic() + limit
    while time.monotonic() < end:
        if out := liveness.poll(time.monotonic()):
            return out
        if not liveness.wanted:
            return []
        time.sleep(0.005)
    raise AssertionError("nothing was found out")


@pytest.fixture
def listening():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def test_nothing_listens_there_any_more(listening):
    address = listening.getsockname()
    listening.close()
    liveness = LivenessProbe(5.0)
    liveness.ask("a", address, time.monotonic())
    (gone,) = found(liveness)
    assert gone.who == "a" and gone.ended and "its process has ended" in gone.why


def test_a_machine_that_accepts_and_says_nothing_is_gone_after_the_limit(listening):
    liveness = LivenessProbe(0.1)
    liveness.ask("a", listening.getsockname(), time.monotonic())
    why = "its connection has ended, and its machine does not answer"
    assert found(liveness) == [Gone("a", why, ended=False)]
    assert not liveness.wanted and liveness.due is None


def test_a_process_that_greets_lives():
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        port = router.bind_to_random_port("tcp://127.0.0.1")
        liveness = LivenessProbe(5.0)
        liveness.ask("a", ("127.0.0.1", port), time.monotonic())
        assert found(liveness) == [] and liveness.due is None


def test_a_process_that_ends_while_it_is_asked(listening):
    liveness = LivenessProbe(5.0)
    liveness.ask("a", listening.getsockname(), time.monotonic())
    listening.accept()[0].close()
    assert found(liveness) == [Gone("a", "its process has ended", ended=True)]


def test_asked_twice_and_forgotten(listening):
    liveness = LivenessProbe(0.05)
    for _ in range(2):
        liveness.ask("a", listening.getsockname(), time.monotonic())
    assert len(liveness.wanted) == 1
    liveness.forget("a")
    time.sleep(0.06)
    assert liveness.poll(time.monotonic()) == []

"""What connects to the port without being an agent of the job must neither be heard nor get in the
way."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import socket

import pytest

from taskd.messages import codec, from_agent, to_rank
from taskd.messages.envelope import VERSION, Envelope, seal
from taskd.protocol import keys

OTHER = keys.derive(b"another secret")


def works(manager, agent):
    """The agent still has a manager."""
    agent.send(from_agent.RankDied(0, 0, "SIGKILL"))
    agent.expect(to_rank.Interrupt)
    assert set(manager.server.members.agents) == {0}


def stranger_keys(name, ours):
    return {
        "another secret": OTHER,
        # has learned the server's public key somehow, and not the secret: it can connect, and has
        # no name that counts
        "the server's public key": dataclasses.replace(OTHER, server_public=ours.server_public),
        "no CURVE": None,
    }[name]


@pytest.mark.parametrize("name", ["another secret", "the server's public key", "no CURVE"])
def test_nothing_is_delivered_from_or_to_a_stranger(start, name):
    manager = start()
    (agent,) = manager.protected(1)
    stranger = manager.agent(with_keys=stranger_keys(name, agent.keys))
    stranger.join()
    stranger.send(from_agent.AgentLeft(0, False))
    if name == "the server's public key":
        manager.dropped("another's name", 3)
    assert stranger.socket.poll(300) == 0
    works(manager, agent)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x08\x00agent-7\x06\x00hello",  # ZMTP/1.0: a bare ROUTER takes this as a message
        b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f",  # the first part of a ZMTP/3 greeting
        b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x03\x00NULL" + b"\x00" * 48 + b"\x04\x05READY",
        b"\xff" + b"\x00" * 7 + b"\x01\x7f\x03\x01CURVE" + b"\x00" * 47 + b"\x04\xff" * 200,
        random.Random(1).randbytes(4096),
        b"",
    ],
    ids=["http", "zmtp1", "half greeting", "null greeting", "curve garbage", "random", "nothing"],
)
def test_raw_bytes_do_not_disturb(start, data):
    manager = start()
    (agent,) = manager.protected(1)
    sockets = [socket.create_connection(("127.0.0.1", manager.port)) for _ in range(20)]
    for s in sockets:
        with contextlib.suppress(OSError):  # thrown out already
            s.sendall(data)
    works(manager, agent)
    assert not manager.server.drops.total
    for s in sockets:
        s.close()


def test_an_agent_that_sends_rubbish_is_counted_and_the_next_message_is_taken(start):
    manager = start()
    (agent,) = manager.protected(1)
    agent.socket.send(b"rubbish")
    agent.socket.send(b"")
    agent.socket.send(seal(Envelope(99, "job", 0, agent.incarnation, 99, b"")))
    agent.socket.send(seal(Envelope(VERSION, "job", 0, agent.incarnation, 99, b"\xc1")))
    manager.dropped("not a message", 4)
    agent.socket.send_multipart([b"", b"two frames"])
    manager.dropped("frames")
    agent.socket.send(
        seal(Envelope(VERSION, "job", 0, "", 99, codec.encode(from_agent.Heartbeat(1))))
    )
    manager.dropped("another's name")
    agent.socket.send(
        seal(
            Envelope(
                VERSION, "job", 0, agent.incarnation, -1, codec.encode(from_agent.Heartbeat(1))
            )
        )
    )
    manager.dropped("not a message", 5)
    works(manager, agent)

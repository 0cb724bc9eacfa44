"""Addresses as ZeroMQ takes them, and what a server and a client of the same job do with them."""

from __future__ import annotations

import pytest
import zmq

from taskd.protocol import curve
from taskd.protocol.gate import Gate, speaker
from taskd.protocol.keys import derive


@pytest.mark.parametrize(
    "host, port, expected",
    [
        ("10.0.0.1", 80, "tcp://10.0.0.1:80"),
        ("node-0", 80, "tcp://node-0:80"),
        ("::1", 80, "tcp://[::1]:80"),
        ("fe80::1%eth0", None, "tcp://[fe80::1%eth0]"),
        ("10.0.0.1", None, "tcp://10.0.0.1"),
    ],
)
def test_addresses(host, port, expected):
    assert curve.endpoint(host, port) == expected


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_client_of_the_same_secret_is_heard(host):
    keys, context = derive(b"secret"), zmq.Context()
    try:
        gate = Gate(context, keys, lambda address: pytest.fail(f"{address} was refused"))
        server = curve.server(context, host, keys, 1000)
        try:
            port = server.bind_to_random_port(curve.endpoint(host))
        except zmq.ZMQError as error:
            pytest.skip(f"no {host} here: {error}")
        identity = keys.identity()
        client = curve.client(context, host, keys, identity, 1000)
        client.connect(curve.endpoint(host, port))
        client.send(b"x")
        assert gate.socket.poll(10_000)
        gate.answer()
        assert server.poll(10_000)
        frames = server.recv_multipart(copy=False)
        assert frames[1].bytes == b"x"
        assert {speaker(frame) for frame in frames} == {identity.name}
    finally:
        context.destroy(linger=0)

"""Sockets under a job's CURVE keys, and addresses in ZeroMQ's form. A socket's owner sets its other
options."""

from __future__ import annotations

from socket import AddressFamily
from typing import Any

import zmq

from taskd.protocol.addresses import any_port, family
from taskd.protocol.gate import DOMAIN
from taskd.protocol.keys import Identity, Keys

HANDSHAKE = 5000  # ms until a half-open connection is closed; ZeroMQ's default is 30 s


def endpoint(host: str, port: int | None = None) -> str:
    """The `tcp://` form of an address; without a port, the form that `bind_to_random_port`
    takes."""
    bracketed = f"[{host}]" if ":" in host else host
    return f"tcp://{bracketed}" if port is None else f"tcp://{bracketed}:{port}"


def server(context: zmq.Context[Any], host: str, keys: Keys, limit: int) -> zmq.Socket[Any]:
    """A ROUTER to be bound on `host`, open to holders of the secret; a Gate in the same context
    names the senders. `limit`: bytes of a message, at least 1000, since it also applies to the
    handshake. Closing it drops unsent messages."""
    return _made(context, zmq.ROUTER, host, limit, {
        zmq.LINGER: 0,
        zmq.CURVE_SERVER: 1,
        zmq.CURVE_SECRETKEY: keys.server_secret,
        zmq.ZAP_DOMAIN: DOMAIN,
    })  # fmt: skip


def bind(router: zmq.Socket[Any], host: str, ports: range | None) -> int:
    """Bind to one of `ports`, None: to any, and return it. Raises OSError."""

    def take(port: int) -> int:
        try:
            if port == 0:
                return router.bind_to_random_port(endpoint(host))
            router.bind(endpoint(host, port))
        except zmq.ZMQError as error:
            raise OSError(error.errno, str(error)) from None
        return port

    return any_port(ports, take)


def client(
    context: zmq.Context[Any], host: str, keys: Keys, identity: Identity, limit: int
) -> zmq.Socket[Any]:
    """A DEALER to be connected to a `server` on `host` as `identity`. `limit`: as for a server.
    Closing it drops unsent messages."""
    return _made(context, zmq.DEALER, host, limit, {
        zmq.LINGER: 0,
        zmq.CURVE_SERVERKEY: keys.server_public,
        zmq.CURVE_PUBLICKEY: identity.public,
        zmq.CURVE_SECRETKEY: identity.secret,
    })  # fmt: skip


def _made(
    context: zmq.Context[Any], kind: int, host: str, limit: int, options: dict[int, int | bytes]
) -> zmq.Socket[Any]:
    socket: zmq.Socket[Any] = context.socket(kind)
    common: dict[int, int | bytes] = {
        zmq.MAXMSGSIZE: limit,
        zmq.HANDSHAKE_IVL: HANDSHAKE,
        zmq.IPV6: int(family(host) is AddressFamily.AF_INET6),
    }
    for option, value in {**common, **options}.items():
        socket.setsockopt(option, value)
    return socket

"""The manager's listening socket and its options; each number that is not ZeroMQ's default has its
reason beside it."""

from __future__ import annotations

import errno
import resource
from typing import Any

import zmq

from taskd.messages.codec import MAX_BYTES
from taskd.protocol import curve, pings
from taskd.protocol.keys import Keys
from taskd.settings import BadSetting


class PortInUse(OSError):
    def __init__(self, host: str, port: int) -> None:
        remedy = (
            "end the manager that holds it, or set TASKD_PORT to the same free port on all nodes"
        )
        super().__init__(f"port {port} on {host} is in use: {remedy}")


def listen(
    context: zmq.Context[Any], host: str, port: int, keys: Keys, nodes: int = 1
) -> zmq.Socket[Any]:
    """Bind a ROUTER on host:port, open to holders of the secret. Raises PortInUse and
    BadSetting."""
    router = curve.server(context, host, keys, MAX_BYTES)
    options = {
        zmq.ROUTER_MANDATORY: 1,  # a command to an agent that is gone fails here, not silently
        # pyzmq's 100 overflowed 5,800 times when 5,000 agents connected at once (measured)
        zmq.BACKLOG: 8192,
        **pings.of_manager(nodes),
    }
    for option, value in options.items():
        router.setsockopt(option, value)
    try:
        router.bind(curve.endpoint(host, port))
    except zmq.ZMQError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(host, port) from None
        if error.errno in (errno.EACCES, errno.EPERM):
            raise BadSetting(
                "TASKD_PORT",
                port,
                "a port that this user may open",
                "set TASKD_PORT to one above 1023",
            ) from None
        raise BadSetting(
            "POD_IP",
            host,
            "an IP address of this machine",
            f"correct or unset it ({error.strerror})",
        ) from None
    return router


def allow_files(needed: int) -> None:
    """Allow this process `needed` descriptors, one per connection, and twice as many if possible,
    for probes and connections made again: without a free one ZeroMQ's thread spins and no agent can
    connect. Raises BadSetting."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise BadSetting(
            "ulimit -Hn",
            hard,
            f"{needed} or more for this number of nodes",
            "raise it where the manager starts",
        )
    if soft != resource.RLIM_INFINITY and soft < 2 * needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

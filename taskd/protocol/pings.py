"""ZeroMQ pings, which detect a dead connection that neither end closes: a machine is cut off, loses
power or stalls.

Both ends ping. One direction would do by its TTL, the time after which the other end takes silence
for death; but ZeroMQ drops that timer as soon as anything else arrives, until the next ping: an
agent cut off right after a message from the manager noticed it after 5 s instead of 1. Pings are
most of what an idle manager costs.
"""

from __future__ import annotations

import zmq

MANY = 1000  # nodes; pinging more than these every 0.4 s would cost the manager a core
# pings of all agents together; at 9,000, with both ends on the same two cores, late pings ended
# connections
PER_SECOND = 4000


def beat(nodes: int) -> int:
    """Milliseconds between two pings over a connection, in a job of `nodes`. A job of one node is
    on one machine, where pings only detect a stalled process."""
    return 400 if 1 < nodes <= MANY else max(1000, -(-1000 * nodes // PER_SECOND))


def noticed(nodes: int) -> float:
    """Seconds within which both ends detect a dead connection."""
    return 3 * beat(nodes) / 1000


def options(nodes: int) -> dict[int, int]:
    """Socket options of manager and agents, in a job of `nodes`."""
    each = beat(nodes)
    # a reply takes a round trip; a process that is not scheduled for a while must not look dead at
    # either end
    return {zmq.HEARTBEAT_IVL: each, zmq.HEARTBEAT_TIMEOUT: 2 * each, zmq.HEARTBEAT_TTL: 3 * each}

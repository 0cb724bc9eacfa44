"""How a connection is noticed to be dead when nobody says so (a machine that is cut off, loses
power or stands still): ZeroMQ's pings.

Both ends ping. One direction would do by its TTL, which says how long the other end may take
silence for life; but ZeroMQ forgets that as soon as anything else arrives, until the next ping: cut
off right after the manager had said something, an agent noticed it after 5 s instead of 1. Pings
are most of what an idle manager costs.
"""

from __future__ import annotations

import zmq

MANY = 1000  # nodes; pings to more than these each 0.4 s would cost the manager a core
# pings of all agents; with 9,000 on two cores, both sides there, connections were ended because
# pings were late
PER_SECOND = 4000


def beat(nodes: int) -> int:
    """ms between two pings over the same connection, in a job of that size. Of one node it is on
    one machine: what is noticed of it by pings is only that it stands still."""
    return 400 if 1 < nodes <= MANY else max(1000, -(-1000 * nodes // PER_SECOND))


def noticed(nodes: int) -> float:
    """Seconds after which both ends have noticed."""
    return 3 * beat(nodes) / 1000


def options(nodes: int) -> dict[int, int]:
    """Of a socket of manager or agent, in a job of that size."""
    each = beat(nodes)
    # an answer comes within a round trip; a process that the kernel does not let run for a while
    # must not look dead at either end
    return {zmq.HEARTBEAT_IVL: each, zmq.HEARTBEAT_TIMEOUT: 2 * each, zmq.HEARTBEAT_TTL: 3 * each}

"""How a connection is noticed to be dead when nobody says so (a machine that is cut off, loses power or stands still): ZeroMQ's pings.

The manager pings, agents answer, and each ping says how long the other end may take its silence for life (TTL, ZMTP 3.1). So pings in one
direction serve both, and only the manager has to know how large the job is. They are most of what an idle manager costs.

ZeroMQ forgets the TTL as soon as anything else arrives, until the next ping. A manager that is gone within that time would not be missed
by this agent. So what an agent says must reach the manager's machine in time, or its kernel ends the connection (an agent says something
each 3 s, and in a repair all the time); and agents ping too, rarely, for a manager that stands still on a machine that is well. That
answer makes ZeroMQ forget as well: the rarer, the better.
"""

from __future__ import annotations

import zmq

MANY = 1000  # nodes; pings to more than these each 0.4 s would cost the manager a core
RARE = 10_000  # ms between two pings of an agent
PATIENCE = 2000  # ms that an agent waits for the answer, and its kernel until what was said has arrived


def beat(nodes: int) -> int:
    """ms between two pings of the manager of a job of that size to the same agent."""
    return 400 if nodes <= MANY else 1000


def noticed(nodes: int) -> float:
    """Seconds after which both ends have noticed: the manager at the latest, an agent unless the manager had just said something."""
    return 3 * beat(nodes) / 1000


def of_manager(nodes: int) -> dict[int, int]:
    """Options of the socket that agents connect to, for a job of that size."""
    each = beat(nodes)
    # an answer comes within a round trip; a process that the kernel does not let run for a while must not look dead at either end
    return {zmq.HEARTBEAT_IVL: each, zmq.HEARTBEAT_TIMEOUT: 2 * each, zmq.HEARTBEAT_TTL: 3 * each}


def of_agent() -> dict[int, int]:
    """Options of a socket that connects to a manager."""
    return {zmq.HEARTBEAT_IVL: RARE, zmq.HEARTBEAT_TIMEOUT: PATIENCE, zmq.TCP_MAXRT: PATIENCE}

"""Detects dead connections that neither end closes: a machine is cut off, loses power or stalls.

The manager pings each agent over ZeroMQ, and treats silence as death. An agent treats missing pings
as death (their TTL), so it need not ping as often: pings are most of the cost of an idle manager,
and its own go out many at a time (manager/slack.py).

ZeroMQ drops the timer of the TTL as soon as anything else arrives, until the next ping. For an
agent that is cut off in that moment there are two more rules. Its kernel probes a connection on
which nothing has arrived for a second (TCP keepalive), which costs no process a wake-up. That does
not find a manager whose process is stopped while its kernel answers: for this, agents ping too, as
rarely as they send heartbeats.
"""

from __future__ import annotations

import zmq

MANY = 1000  # nodes; pinging more than these every 0.4 s would cost the manager a core
# pings of all agents together; at 9,000, with both ends on the same two cores, late pings ended
# connections
PER_SECOND = 4000
CONNECTS = 5000  # a second, of all agents at one machine; refusing one costs its kernel ~10 us
RARELY = 3000  # ms between two pings, or heartbeats, of an agent, at least
HEARTBEATS = 1000  # of all agents together, a second; each costs the manager 60-90 us


def beat(nodes: int) -> int:
    """Milliseconds between two pings over a connection, in a job of `nodes`. A job of one node is
    on one machine, where pings only detect a stalled process."""
    return 400 if 1 < nodes <= MANY else max(1000, -(-1000 * nodes // PER_SECOND))


def heartbeat(nodes: int) -> float:
    """Seconds between two heartbeats of an agent, in a job of `nodes`."""
    return max(RARELY / 1000, nodes / HEARTBEATS)


def silent(nodes: int) -> float:
    """Seconds without any message after which an agent counts as gone though its connection
    is open: three heartbeats are missing."""
    return 3 * heartbeat(nodes) + 1.0


def noticed(nodes: int) -> float:
    """Seconds within which both ends detect a dead connection."""
    return 3 * beat(nodes) / 1000


def again(nodes: int) -> int:
    """Milliseconds, at least, between two attempts of an agent to connect; twice as many at most.
    All of them look for a new manager at once, on a machine that is about to start it."""
    return min(200, max(20, 1000 * nodes // CONNECTS))


def of_manager(nodes: int) -> dict[int, int]:
    """Socket options of the manager, in a job of `nodes`."""
    each = beat(nodes)
    # a reply takes a round trip; a process that is not scheduled for a while must not look dead at
    # either end
    return {zmq.HEARTBEAT_IVL: each, zmq.HEARTBEAT_TIMEOUT: 2 * each, zmq.HEARTBEAT_TTL: 3 * each}


def of_agent(nodes: int) -> dict[int, int]:
    """Socket options of an agent, in a job of `nodes`."""
    each = beat(nodes)
    quiet = -(-each // 1000)  # the kernel counts whole seconds
    return {
        zmq.HEARTBEAT_IVL: max(RARELY, 3 * each),
        zmq.HEARTBEAT_TIMEOUT: 2 * each,
        zmq.TCP_KEEPALIVE: 1,
        zmq.TCP_KEEPALIVE_IDLE: quiet,
        zmq.TCP_KEEPALIVE_INTVL: quiet,
        # TCP_USER_TIMEOUT: how long what was sent, or a probe, may stay without an answer
        zmq.TCP_MAXRT: 1000 * quiet,
    }

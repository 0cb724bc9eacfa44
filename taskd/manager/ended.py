"""Connections that have ended, or that an agent of the job does not have yet: the agent is gone, or
will connect; and those that another key has not opened."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from taskd.core import events as e
from taskd.logs import Drops
from taskd.manager.membership import Membership
from taskd.manager.voters import Voters
from taskd.protocol.liveness import Gone, LivenessProbe

OTHER_KEY = (
    "a launcher, a standby or a command was refused: its TASKD_SECRET (or TASKD_SECRET_FILE;"
    " without them MINDX_TASK_ID or TASKD_PORT) is not this manager's"
)
# of the manager's socket
EVENTS = zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL


class Ended:
    def __init__(
        self,
        monitor: zmq.Socket[Any],
        members: Membership,
        voters: Voters,
        liveness: LivenessProbe,
        feed: Callable[[e.Event, float], None],
        drops: Drops,
    ) -> None:
        """`monitor`: reports EVENTS. `feed` passes an event to `core`."""
        self._monitor, self._members, self._voters = monitor, members, voters
        self._liveness, self._feed, self._drops = liveness, feed, drops

    def poll(self, now: float) -> None:
        """Ask the machines of agents whose connections have ended whether they are alive."""
        closed = set()
        while self._monitor.poll(0):
            told = recv_monitor_message(self._monitor)
            if told["event"] == zmq.EVENT_DISCONNECTED:
                closed.add(told["value"])
            elif told["value"] == zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC:
                self._drops.add("another key", OTHER_KEY, now)
        for agent in self._voters.ended(closed):
            self._feed(e.AgentDisconnected(agent), now)
        for peer in self._members.peers:
            if peer.connection in closed:
                peer.connection = -1
                if peer.records[1]:
                    self._liveness.ask(peer.agent, peer.records, now)

    def gone(self, found: list[Gone], now: float) -> None:
        """Lose the agents that the liveness probe found gone, unless they have reconnected. Of
        others, which have not registered, `core` hears if they have ended."""
        known = {peer.agent: peer for peer in self._members.peers}
        for gone in found:
            peer = known.get(gone.who)
            if peer is None and gone.ended:
                self._feed(e.AgentEnded(gone.who, gone.why), now)
            elif peer is not None and peer.connection < 0:
                self._members.lose(peer, gone.why, now)

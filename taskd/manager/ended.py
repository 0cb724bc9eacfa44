"""Connections that have ended, or that an agent of the job does not have yet: the agent is gone, or
will connect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from taskd.core import events as e
from taskd.manager.membership import Membership
from taskd.manager.voters import Voters
from taskd.protocol.liveness import Gone, LivenessProbe


class Ended:
    def __init__(
        self,
        monitor: zmq.Socket[Any],
        members: Membership,
        voters: Voters,
        liveness: LivenessProbe,
        feed: Callable[[e.Event, float], None],
    ) -> None:
        """`monitor`: reports closed descriptors. `feed` passes an event to `core`."""
        self._monitor, self._members, self._voters = monitor, members, voters
        self._liveness, self._feed = liveness, feed

    def poll(self, now: float) -> None:
        """Ask the machines of agents whose connections have ended whether they are alive."""
        closed = set()
        while self._monitor.poll(0):
            closed.add(recv_monitor_message(self._monitor)["value"])
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

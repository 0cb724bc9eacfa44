"""Connections that have ended: their agents are gone, or will reconnect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from taskd.core import events as e
from taskd.manager.liveness import LivenessProbe
from taskd.manager.membership import Membership
from taskd.manager.voters import Voters


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
        gone: dict[str, str] = {}
        for peer in self._members.peers:
            if peer.connection in closed:
                peer.connection = -1
                if peer.records[1] and (why := self._liveness.ask(peer.agent, peer.records, now)):
                    gone[peer.agent] = why
        if gone:
            self.gone(gone, now)

    def gone(self, found: dict[str, str], now: float) -> None:
        """Lose the agents that the liveness probe found gone, unless they have reconnected."""
        for peer in self._members.peers:
            if peer.connection < 0 and (why := found.get(peer.agent)) is not None:
                self._members.lose(peer, why, now)

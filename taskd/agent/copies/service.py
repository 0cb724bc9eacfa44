"""Copies of the ranks' records on other nodes: private state (random numbers, loader position,
module buffers) has no replica and must outlive its node.

One thread sends this node's records to other agents (copying.py), keeps those of others and hands
them out (keeping.py), and fetches those of a node that this agent takes over (fetching.py).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import zmq

from taskd.agent.copies.copying import Copying
from taskd.agent.copies.fetching import Fetching, Then
from taskd.agent.copies.keeper_connection import MAX_BYTES, KeeperConnection
from taskd.agent.copies.keeping import Keeping
from taskd.agent.ranks.model import Epoch
from taskd.logs import Drops
from taskd.messages import between_agents, from_agent, to_agent
from taskd.protocol import curve
from taskd.protocol.gate import Gate
from taskd.protocol.keys import Identity, Keys
from taskd.protocol.mailbox import Mailbox

log = logging.getLogger("taskd.agent")


class Records:
    """`address`: where this agent receives others' records. Public methods may be called from any
    thread."""

    def __init__(
        self,
        host: str,
        keys: Keys,
        identity: Identity,
        job: str,
        ask: Callable[[from_agent.May], None],
        ports: range | None = None,
    ) -> None:
        """`ports`: on which to receive others' records; None: any. `ask` sends a question to the
        manager, in this object's thread; the answer arrives through `permit`. Raises OSError."""
        context: zmq.Context[Any] = zmq.Context()

        def dial(address: tuple[str, int]) -> KeeperConnection:
            return KeeperConnection(context, address, keys, identity)

        self._context = context
        drops = Drops(log)
        self._gate = Gate(
            context,
            keys,
            lambda address: drops.add("no CURVE key", address, time.monotonic()),
        )
        # every process with the secret may connect
        self._router = curve.server(context, host, keys, MAX_BYTES)
        self.address = (host, curve.bind(self._router, host, ports))
        # used by the thread
        self.copying, self.fetching = Copying(job, dial), Fetching(job, dial)
        copying = self.copying
        self.keeping = Keeping(
            self._router, keys.records, job, ask, copying.ours, lambda: copying.generation
        )
        self._mailbox = Mailbox()
        self._closing = False
        self._thread = threading.Thread(target=self._loop, name="taskd-records", daemon=True)
        self._thread.start()

    # -- any thread --------------------------------------------------------------------------------

    def begin(self, node: int, epoch: Epoch) -> None:
        """Send and keep records for `epoch` from now on."""

        def begin() -> None:
            self.copying.begin(node, epoch)
            self.keeping.forget()

        self._mailbox.put(begin)

    def keep_at(self, addresses: Sequence[tuple[str, int]]) -> None:
        """Make the agents at `addresses` the keepers of our records; they get all existing ones."""
        self._mailbox.put(lambda: self.copying.keep_at(addresses))

    def fetch(
        self, node: int, ranks: Sequence[int], addresses: Sequence[tuple[str, int]], then: Then
    ) -> None:
        """Fetch the records of `ranks` of `node` from the first agent at `addresses` that has all
        of them, and call `then` with them in this object's thread."""
        self._mailbox.put(lambda: self.fetching.fetch(node, ranks, addresses, then))

    def permit(self, answer: to_agent.Permit) -> None:
        """Handle the manager's answer to a question."""
        self._mailbox.put(lambda: self.keeping.permit(answer))

    def keeps(self) -> tuple[tuple[int, int, int], ...]:
        """Nodes whose records are kept here: see AgentJoined."""
        return self.keeping.keeps()

    def of(self, node: int) -> list[between_agents.Keep]:
        """The records kept for `node`."""
        return self.keeping.of(node)

    def close(self) -> None:
        self._closing = True
        self._mailbox.put(lambda: None)
        self._thread.join(2.0)

    # -- the thread --------------------------------------------------------------------------------

    def _loop(self) -> None:
        while not self._closing:
            try:
                self._turn()
            except Exception:
                log.exception("the records thread continues after an error")
        self._context.destroy(linger=0)

    def _turn(self) -> None:
        poller = zmq.Poller()
        for source in (
            self._router,
            self._gate.socket,
            self._mailbox.fileno(),
            *self.copying.sources,
            *self.fetching.sources,
        ):
            poller.register(source, zmq.POLLIN)
        waiting = self.copying.waiting or self.keeping.waiting or self.fetching.waiting
        ready = dict(poller.poll(500 if waiting else None))
        if self._gate.socket in ready:
            self._gate.answer()
        self._mailbox.carry_out()
        for part in (self.copying, self.keeping, self.fetching):
            part.turn(ready)

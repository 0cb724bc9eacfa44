"""Fetches the records of a lost node from an agent that keeps them, and puts them in place."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from taskd.agent.copies.keeper_connection import KeeperConnection
from taskd.core.job.snapshots import KINDS, START
from taskd.messages import between_agents, codec
from taskd.records.sealed import BadRecord
from taskd.records.start import Start
from taskd.records.store import Entries, forget

log = logging.getLogger("taskd.agent")

Then = Callable[[list[between_agents.Keep] | None], None]


NEXT = 1.0  # seconds without a whole answer after which the next keeper is asked too
LIMIT = 16.0  # seconds until the best answer is taken


@dataclass
class _Fetch:
    ranks: frozenset[int]
    addresses: list[tuple[str, int]]  # still to be asked
    then: Then
    deadline: float
    asked: float = 0.0  # when the last one was
    # what has arrived over each connection
    connections: dict[KeeperConnection, list[between_agents.Keep]] = field(default_factory=dict)
    best: list[between_agents.Keep] | None = None


class Fetching:
    """Used by one thread. `dial`: connects to a keeper."""

    def __init__(self, job: str, dial: Callable[[tuple[str, int]], KeeperConnection]) -> None:
        self._job, self._dial = job, dial
        self._fetches: dict[int, _Fetch] = {}  # by node

    def fetch(
        self, node: int, ranks: Sequence[int], addresses: Sequence[tuple[str, int]], then: Then
    ) -> None:
        """Call `then` with the records of `node` from the first agent at `addresses` that has
        records of all `ranks`, else from the one that has the most ranks; with None if no agent
        answers."""
        if (before := self._fetches.pop(node, None)) is not None:
            _close(before)
        deadline = time.monotonic() + LIMIT
        self._fetches[node] = _Fetch(frozenset(ranks), [*addresses], then, deadline)
        self._ask(node)

    def _ask(self, node: int) -> None:
        """Ask the next agent, or finish if none is left to answer."""
        fetch = self._fetches[node]
        if fetch.addresses:
            connection = self._dial(fetch.addresses.pop(0))
            fetch.connections[connection], fetch.asked = [], time.monotonic()
            connection.send(codec.encode(between_agents.Fetch(self._job, node)))
        elif not fetch.connections:
            self._finish(node)

    def _finish(self, node: int) -> None:
        fetch = self._fetches.pop(node)
        _close(fetch)
        fetch.then(fetch.best)

    # -- the thread's poll -------------------------------------------------------------------------

    @property
    def sources(self) -> list[Any]:
        """What to poll for reading."""
        return [c.socket for fetch in self._fetches.values() for c in fetch.connections]

    @property
    def waiting(self) -> bool:
        return bool(self._fetches)

    def turn(self, ready: dict[Any, int]) -> None:
        now = time.monotonic()
        for node, fetch in list(self._fetches.items()):
            for connection in [c for c in fetch.connections if c.socket in ready]:
                if self._fetches.get(node) is fetch:
                    self._arrived(node, fetch, connection)
            if self._fetches.get(node) is not fetch:
                continue
            if now > fetch.deadline:
                log.warning("not all keepers of node %d's records have answered", node)
                self._finish(node)
            elif fetch.addresses and now > fetch.asked + NEXT:
                self._ask(node)

    def _arrived(self, node: int, fetch: _Fetch, connection: KeeperConnection) -> None:
        for message in connection.received():
            if isinstance(message, between_agents.Keep):
                fetch.connections[connection].append(message)
            elif isinstance(message, between_agents.Fetched):
                found = fetch.connections.pop(connection)
                connection.close()
                # messages that did not fit into the queue are missing; incomplete records are of no
                # use
                if len(found) == message.count:
                    self._judge(node, fetch, found)
                else:
                    self._ask(node)
                return

    def _judge(self, node: int, fetch: _Fetch, found: list[between_agents.Keep]) -> None:
        """Judge what a keeper has sent, which is all that it has."""
        of = [
            len({keep.rank for keep in f if keep.kind in KINDS} & fetch.ranks)
            for f in (found, fetch.best or [])
        ]
        if fetch.best is None or of[0] > of[1]:
            fetch.best = found
        if of[0] == len(fetch.ranks):
            self._finish(node)
        else:
            self._ask(node)


def _close(fetch: _Fetch) -> None:
    for connection in fetch.connections:
        connection.close()


def put_back(directory: Path, locals_of: dict[int, int], found: list[between_agents.Keep]) -> None:
    """Write fetched records into the files of this node's ranks, in place of what is there.
    `locals_of`: rank -> local rank. Anything else than a record of its rank and step is logged and
    left out, and so is what there is no room for. An existing start record stays until another one
    replaces it."""
    for local in locals_of.values():
        forget(directory, local)
    for keep in sorted(found, key=lambda k: k.step):
        if keep.rank not in locals_of or keep.kind not in (*KINDS, START):
            continue
        place = directory, locals_of[keep.rank], keep.rank
        try:
            if keep.kind == START:
                Start(*place).put(keep.payload)
                continue
            entries = Entries(*place)
            entries.seal.check(keep.payload, keep.step)
            entries.write(keep.step, keep.kind, [keep.payload])
        except (BadRecord, OSError) as error:  # OSError: there is no room
            log.error(
                "rank %d: a fetched record of step %d is not used: %s", keep.rank, keep.step, error
            )

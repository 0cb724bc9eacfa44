"""The records of a lost node are fetched from an agent that keeps them, and put in place."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from taskd.agent.keeper_line import KeeperLine
from taskd.core.snapshots import KINDS
from taskd.messages import between_agents, codec
from taskd.records.sealed import BadRecord
from taskd.records.store import Entries, forget

log = logging.getLogger("taskd.agent")

Then = Callable[[list[between_agents.Keep] | None], None]


# seconds for one keeper to answer in, 10 kB a rank; then the next one is asked
LIMIT = 8.0


@dataclass
class _Fetch:
    addresses: list[tuple[str, int]]  # still to be asked
    then: Then
    line: KeeperLine | None = None
    deadline: float = 0.0
    found: list[between_agents.Keep] = field(default_factory=list)


class Fetching:
    """Used by one thread. `dial`: connects to a keeper."""

    def __init__(self, job: str, dial: Callable[[tuple[str, int]], KeeperLine]) -> None:
        self._job, self._dial = job, dial
        self._fetches: dict[int, _Fetch] = {}  # by node

    def fetch(self, node: int, addresses: Sequence[tuple[str, int]], then: Then) -> None:
        """Have `then` called with the records of `node` that the first of the agents at `addresses`
        keeps which has any; None: nobody has given them whole."""
        if (before := self._fetches.pop(node, None)) is not None and before.line is not None:
            before.line.close()
        self._fetches[node] = _Fetch([*addresses], then)
        self._ask(node, None)

    def _ask(self, node: int, found: list[between_agents.Keep] | None) -> None:
        """Ask the next agent; `found` is what there is otherwise."""
        fetch = self._fetches[node]
        if fetch.line is not None:
            fetch.line.close()
            fetch.line = None
        if found or not fetch.addresses:
            del self._fetches[node]
            fetch.then(found)
            return
        fetch.found, fetch.deadline = [], time.monotonic() + LIMIT
        fetch.line = self._dial(fetch.addresses.pop(0))
        fetch.line.send(codec.encode(between_agents.Fetch(self._job, node)))

    # -- the thread's poll -------------------------------------------------------------------------

    @property
    def sources(self) -> list[Any]:
        """What to poll for reading."""
        return [f.line.socket for f in self._fetches.values() if f.line is not None]

    @property
    def waiting(self) -> bool:
        return bool(self._fetches)

    def turn(self, ready: dict[Any, int]) -> None:
        for node, fetch in list(self._fetches.items()):
            if fetch.line is not None and fetch.line.socket in ready:
                self._arrived(node, fetch, fetch.line)
            elif time.monotonic() > fetch.deadline:
                log.warning("a keeper of node %d's records has not answered", node)
                self._ask(node, None)

    def _arrived(self, node: int, fetch: _Fetch, line: KeeperLine) -> None:
        for message in line.received():
            if isinstance(message, between_agents.Keep):
                fetch.found.append(message)
            elif isinstance(message, between_agents.Fetched):
                # what did not fit into the line is missing: half of the records are none
                self._ask(node, fetch.found if len(fetch.found) == message.count else None)
                return


def put_back(directory: Path, locals_of: dict[int, int], found: list[between_agents.Keep]) -> None:
    """Write fetched records into the files of this node's ranks, in place of what is there.
    `locals_of`: rank -> local rank. What is no record of its rank and step is left out, and
    said."""
    for local in locals_of.values():
        forget(directory, local)
    for keep in sorted(found, key=lambda k: k.step):
        if keep.rank not in locals_of or keep.kind not in KINDS:
            continue
        entries = Entries(directory, locals_of[keep.rank], keep.rank)
        try:
            entries.seal.check(keep.payload, keep.step)
        except BadRecord as error:
            log.error(
                "rank %d: a fetched record of step %d is not used: %s", keep.rank, keep.step, error
            )
            continue
        entries.write(keep.step, keep.kind, [keep.payload])

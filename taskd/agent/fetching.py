"""The records of a lost node are fetched from the agent that keeps them, and put in place."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from taskd.agent.keeper_line import KeeperLine
from taskd.core.snapshots import KINDS
from taskd.messages import between_agents
from taskd.records.sealed import BadRecord
from taskd.records.store import Entries, forget

log = logging.getLogger("taskd.agent")

Then = Callable[[list[between_agents.Keep] | None], None]


@dataclass
class _Fetch:
    line: KeeperLine
    then: Then
    found: list[between_agents.Keep] = field(default_factory=list)


class Fetching:
    """Used by one thread. `dial`: connects to a keeper."""

    def __init__(self, job: str, dial: Callable[[tuple[str, int]], KeeperLine]) -> None:
        self._job, self._dial = job, dial
        self._fetches: dict[int, _Fetch] = {}  # by node

    def fetch(self, node: int, address: tuple[str, int], then: Then) -> None:
        """Have `then` called with the records of `node` that the agent at `address` keeps; None:
        not all have come."""
        if (before := self._fetches.pop(node, None)) is not None:
            before.line.close()
        fetch = self._fetches[node] = _Fetch(self._dial(address), then)
        fetch.line.send(between_agents.Fetch(self._job, node))

    # -- the thread's poll -------------------------------------------------------------------------

    @property
    def sources(self) -> list[Any]:
        """What to poll for reading."""
        return [fetch.line.socket for fetch in self._fetches.values()]

    def turn(self, ready: dict[Any, int]) -> None:
        for node, fetch in list(self._fetches.items()):
            if fetch.line.socket in ready:
                self._arrived(node, fetch)

    def _arrived(self, node: int, fetch: _Fetch) -> None:
        for message in fetch.line.received():
            if isinstance(message, between_agents.Keep):
                fetch.found.append(message)
            elif isinstance(message, between_agents.Fetched):
                del self._fetches[node]
                fetch.line.close()
                # what did not fit into the line is missing: half of the records are none
                fetch.then(fetch.found if len(fetch.found) == message.count else None)
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

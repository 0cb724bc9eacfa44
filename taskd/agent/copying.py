"""This node's records are sent to the agent of another node, which the manager names.

A rank writes its record for the start of a step into shared memory and says so through a pipe; it
goes into the step's first collective when the keeper has the record. So whoever has committed a
step knows that every rank's record for its start is on two nodes.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import Any

from taskd.agent.keeper_line import KeeperLine
from taskd.agent.ranks import Epoch
from taskd.messages import between_agents
from taskd.records.store import NOTE, NOTES, Entries

log = logging.getLogger("taskd.agent")

# seconds without an acknowledgement after which ranks do not wait any more; it comes within a round
# trip
PATIENCE = 5.0


class Copying:
    """Used by one thread. `dial`: connects to a keeper. `active`: ranks wait for copies of
    theirs."""

    def __init__(self, job: str, dial: Callable[[tuple[str, int]], KeeperLine]) -> None:
        self._job, self._dial = job, dial
        self._keeper: KeeperLine | None = None
        self._epoch: Epoch | None = None
        self._node = 0
        self._pipe = -1
        self._entries: dict[int, tuple[int, Entries]] = {}  # local rank -> (inode, its records)
        self._sent: dict[int, int] = {}  # local rank -> number of the last record that was sent
        self._kept: dict[int, int] = {}  # local rank -> number of the last one that is kept
        self._unanswered: float | None = None  # since when an acknowledgement is waited for
        self.active = False

    def begin(self, node: int, epoch: Epoch) -> None:
        """The ranks of `epoch` write records from now on."""
        if self._pipe >= 0:
            os.close(self._pipe)
        self._node, self._epoch, self._entries, self._sent = node, epoch, {}, {}
        # for writing too: a pipe without a writer would always be ready
        self._pipe = os.open(epoch.directory / NOTES, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        if self._keeper is not None:  # of processes that are gone
            self._keeper.close()
            self._keeper = None

    def keep_at(self, address: tuple[str, int]) -> None:
        """From now on the agent at `address` keeps our records; it gets all there are."""
        epoch = self._epoch
        if epoch is None or epoch.dropped:
            return
        if self._keeper is not None:
            self._keeper.close()
        self._keeper = self._dial(address)
        self._kept, self._unanswered, self.active = {}, None, True
        epoch.page.copying(True)  # ranks wait from here on: what they have said before is sent now
        for local in epoch.ranks:
            entries = self._read(local)
            steps = entries.all() if entries is not None else []
            for step in steps:  # the last one's acknowledgement lets the rank go on
                self._send(
                    local,
                    self._sent.get(local, 0) if step == steps[-1] else 0,
                    step,
                    anew=step == steps[0],
                )

    def ours(self, node: int) -> list[between_agents.Keep] | None:
        """The records of this node's own ranks, which another agent is about to run; None where
        `node` is another."""
        epoch = self._epoch
        if epoch is None or node != self._node:
            return None
        out: list[between_agents.Keep] = []
        for rank in epoch.ranks.values() if not epoch.dropped else ():
            entries = self._read(rank.local)
            for step in entries.all() if entries is not None else []:
                if entries is not None and (found := entries.read(step)) is not None:
                    out.append(
                        between_agents.Keep(
                            self._job, self._node, rank.number, 0, step, found[0], False, found[1]
                        )
                    )
        return out

    # -- the thread's poll -------------------------------------------------------------------------

    @property
    def sources(self) -> list[Any]:
        """What to poll for reading."""
        keeper = [self._keeper.socket] if self._keeper is not None else []
        return [*keeper, *([self._pipe] if self._pipe >= 0 else [])]

    @property
    def waiting(self) -> bool:
        return self._unanswered is not None

    def turn(self, ready: dict[Any, int]) -> None:
        if self._pipe in ready:
            self._forward()
        if self._keeper is not None and self._keeper.socket in ready:
            self._acknowledged(self._keeper)
        self._judge(time.monotonic())

    def _forward(self) -> None:
        """Ranks have written records."""
        try:
            data = os.read(self._pipe, NOTE.size * 1024)  # notes are written whole
        except BlockingIOError:
            return
        for local, _, number, step in NOTE.iter_unpack(data):
            if number == self._sent.get(local):
                # a rank waits for an acknowledgment that will not come: see worker/copies.py
                state = f"sent {self._sent}, acknowledged {self._kept}, active {self.active}"
                log.warning("record %d of local rank %d is sent again (%s)", number, local, state)
            self._sent[local] = number
            self._send(local, number, step, anew=False)

    def _send(self, local: int, number: int, step: int, anew: bool) -> None:
        epoch, keeper = self._epoch, self._keeper
        if epoch is None or keeper is None:
            return
        entries, rank = self._read(local), epoch.ranks.get(local)
        found = entries.read(step) if entries is not None else None
        if found is None or rank is None:
            return  # overwritten already: a later one is on its way
        kind, payload = found
        if self._unanswered is None:
            self._unanswered = time.monotonic()
        keeper.send(
            between_agents.Keep(
                self._job, self._node, rank.number, number, step, kind, anew, payload
            )
        )

    def _read(self, local: int) -> Entries | None:
        """The rank's records; it makes a new file when they grow."""
        epoch = self._epoch
        assert epoch is not None
        try:
            inode = os.stat(epoch.directory / f"entries-{local}").st_ino
            if self._entries.get(local, (0,))[0] != inode:
                self._entries[local] = (
                    inode,
                    Entries(epoch.directory, local, epoch.ranks[local].number),
                )
        except (OSError, KeyError):
            return None
        return self._entries[local][1]

    def _acknowledged(self, keeper: KeeperLine) -> None:
        for message in keeper.received():
            epoch = self._epoch
            if epoch is None or epoch.dropped or not isinstance(message, between_agents.Kept):
                continue
            rank = epoch.find(message.rank)
            if rank is None:
                continue
            self._kept[rank.local] = message.number
            epoch.page.copied(rank.local, message.number)
            if all(self._kept.get(local, 0) >= number for local, number in self._sent.items()):
                self._unanswered = None
                if not self.active:
                    self._copy_again(epoch)

    def _copy_again(self, epoch: Epoch) -> None:
        log.info("records are kept on another node again")
        self.active = True
        epoch.page.copying(True)
        for local in epoch.ranks:
            epoch.page.copied(local, self._kept.get(local, 0))

    def _judge(self, now: float) -> None:
        """A keeper that says nothing must not hold up training for long: where it is gone the
        manager names another one."""
        if self._unanswered is not None and self.active and now - self._unanswered > PATIENCE:
            log.error(
                "the keeper of this node's records has not answered for %.0f s: ranks go on without"
                " copies",
                PATIENCE,
            )
            self.active = False
            if self._epoch is not None and not self._epoch.dropped:
                self._epoch.page.copying(False)

"""Sends this node's records to its keepers: the agents of two other nodes, named by the manager.
(In a job of two nodes there is one.)

A rank writes its record for the start of a step into shared memory and notifies the agent through a
pipe; it enters the step's first collective once all keepers have the record. So when any rank has
committed a step, every rank's record for its start is on three nodes.

The record of a rank's start (records/start.py) is sent before the first of these, and again after
each change; acknowledgements of a keeper without the current one do not count.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from taskd.agent.copies.keeper_connection import KeeperConnection
from taskd.agent.ranks.model import Epoch, Rank
from taskd.core.job.snapshots import START
from taskd.messages import between_agents, codec
from taskd.records import room, start
from taskd.records.store import NOTE, NOTES, Entries

log = logging.getLogger("taskd.agent")

# seconds without an acknowledgement after which ranks stop waiting; it normally takes a round trip
PATIENCE = 5.0
# seconds without one, beyond the transfer time, after which all records are sent again over a new
# connection: a broken connection loses what is in flight
AGAIN = 1.0
# seconds after which a keeper without memory for a record is asked again, by sending all
ASKED_AGAIN = 10.0
SLOWEST = 50e6  # bytes a second


class _Keeper:
    """The keeper at `address`. `kept`: local rank -> number of the last record that it has;
    `unanswered`: when the oldest unacknowledged record was sent, and `size`: unacknowledged bytes;
    `tried`: when all records were last sent; `active`: whether ranks wait for it. `refused`: when
    it had no memory for one, and has not been asked again. `starts`: local rank -> numbers of the
    start record last sent to it, and of the one that it has."""

    def __init__(self, address: tuple[str, int], connection: KeeperConnection) -> None:
        self.address, self.connection = address, connection
        self.kept: dict[int, int] = {}
        self.starts: dict[int, tuple[int, int]] = {}
        self.unanswered: float | None = None
        self.size = 0
        self.tried = 0.0
        self.active = True
        self.refused: float | None = None


class Copying:
    """Used by one thread. `dial`: connects to a keeper."""

    def __init__(self, job: str, dial: Callable[[tuple[str, int]], KeeperConnection]) -> None:
        self._job, self._dial = job, dial
        self._keepers: list[_Keeper] = []
        self._epoch: Epoch | None = None
        self._node = 0
        self._pipe = -1
        self._entries: dict[int, Entries] = {}  # local rank -> its records
        self._sent: dict[int, int] = {}  # local rank -> number of the last record that was sent
        self._starts: dict[int, start.Start] = {}  # by local rank

    @property
    def generation(self) -> int:
        return self._epoch.generation if self._epoch is not None else 0

    def begin(self, node: int, epoch: Epoch) -> None:
        """Start copying the records of the ranks of `epoch`."""
        if self._pipe >= 0:
            os.close(self._pipe)
        self._node, self._epoch, self._entries, self._sent = node, epoch, {}, {}
        self._starts = {}
        # for writing too: a pipe without a writer would always be ready
        self._pipe = os.open(epoch.directory / NOTES, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._reduce([])  # those of processes that are gone

    def _reduce(self, keepers: list[_Keeper]) -> None:
        for keeper in self._keepers:
            if keeper not in keepers:
                keeper.connection.close()
        self._keepers = keepers

    def keep_at(self, addresses: Sequence[tuple[str, int]]) -> None:
        """Make the agents at `addresses` the keepers of our records; new ones get all existing
        records. With no address, ranks do not wait for copies."""
        epoch = self._epoch
        if epoch is None or epoch.dropped:
            return
        self._reduce([keeper for keeper in self._keepers if keeper.address in addresses])
        present = {keeper.address for keeper in self._keepers}
        new = [_Keeper(a, self._dial(a)) for a in addresses if a not in present]
        self._keepers += new
        # ranks wait from here on: send the records of their earlier notes now
        epoch.page.copying(self.active)
        self._send_all(epoch, new)
        for local in epoch.ranks:
            self._copied(epoch, local)  # the one that it waited for may be gone

    def _send_all(self, epoch: Epoch, keepers: list[_Keeper]) -> None:
        for keeper in keepers:
            keeper.tried, keeper.size, keeper.starts = time.monotonic(), 0, {}
        for local in epoch.ranks if keepers else ():
            entries = self._read(local)
            steps = entries.all() if entries is not None else []
            for step in steps:  # the last one's acknowledgement lets the rank go on
                number = self._sent.get(local, 0) if step == steps[-1] else 0
                self._send(local, number, step, anew=step == steps[0], keepers=keepers)

    def ours(self, node: int) -> list[between_agents.Keep] | None:
        """The records of this node's ranks, for the agent that takes it over; None if `node` is
        another one."""
        epoch = self._epoch
        if epoch is None or node != self._node:
            return None
        out: list[between_agents.Keep] = []
        for rank in epoch.ranks.values() if not epoch.dropped else ():
            if (record := self._start(epoch, rank).record()) is not None:
                out.append(self._keep_start(rank, 0, record))
            entries = self._read(rank.local)
            for step in entries.all() if entries is not None else []:
                if entries is not None and (found := entries.record(step)) is not None:
                    out.append(
                        between_agents.Keep(
                            self._job, self._node, rank.number, 0, step, found[0], False, found[1]
                        )
                    )
        return out

    @property
    def active(self) -> bool:
        """Whether ranks wait for copies of their records."""
        return any(keeper.active for keeper in self._keepers)

    # -- the thread's poll -------------------------------------------------------------------------

    @property
    def sources(self) -> list[Any]:
        """What to poll for reading."""
        sockets = [keeper.connection.socket for keeper in self._keepers]
        return [*sockets, *([self._pipe] if self._pipe >= 0 else [])]

    @property
    def waiting(self) -> bool:
        return any(k.unanswered is not None or k.refused is not None for k in self._keepers)

    def turn(self, ready: dict[Any, int]) -> None:
        if self._pipe in ready:
            self._forward()
        for keeper in self._keepers:
            if keeper.connection.socket in ready:
                self._acknowledged(keeper)
        self._judge(time.monotonic())

    def _forward(self) -> None:
        """Send the records that ranks have announced through the pipe."""
        try:
            data = os.read(self._pipe, NOTE.size * 1024)  # notes are written whole
        except BlockingIOError:
            return
        for local, _, number, step in NOTE.iter_unpack(data):
            if number == self._sent.get(local):
                # a rank waits for an acknowledgment that will not come: see worker/state/copies.py
                keepers = [(k.kept, k.active) for k in self._keepers]
                state = f"sent {self._sent}, acknowledged {keepers}"
                log.warning("record %d of local rank %d is sent again (%s)", number, local, state)
            self._sent[local] = number
            self._send(local, number, step, anew=False, keepers=self._keepers)

    def _send(self, local: int, number: int, step: int, anew: bool, keepers: list[_Keeper]) -> None:
        epoch, keepers = self._epoch, [k for k in keepers if k.refused is None]
        if epoch is None or not keepers:
            return
        entries, rank = self._read(local), epoch.ranks.get(local)
        found = entries.record(step) if entries is not None else None
        if rank is None:
            return
        self._send_start(epoch, rank, keepers)
        if found is None:
            # already overwritten, so a later note is on its way; if not, all are sent again shortly
            for keeper in keepers:
                keeper.unanswered = keeper.unanswered or time.monotonic()
            there = entries.all() if entries is not None else "none"
            log.info(
                "record %d (local rank %d, step %d) was overwritten; in memory: steps %s",
                number,
                local,
                step,
                there,
            )
            return
        kind, payload = found
        keep = between_agents.Keep(
            self._job, self._node, rank.number, number, step, kind, anew, payload
        )
        data = codec.encode(keep)
        for keeper in keepers:
            if keeper.unanswered is None:
                keeper.unanswered = time.monotonic()
            keeper.size += len(data)
            keeper.connection.send(data)

    def _send_start(self, epoch: Epoch, rank: Rank, keepers: list[_Keeper]) -> None:
        """Send the record of the rank's start to the keepers that were not sent the current one."""
        local = rank.local
        if local not in self._starts:
            self._starts[local] = self._start(epoch, rank)
        found = self._starts[local]
        number = found.version
        behind = [k for k in keepers if k.starts.get(local, (0, 0))[0] != number]
        record = found.record() if behind and number else None
        if record is None:
            return
        data = codec.encode(self._keep_start(rank, number, record))
        for keeper in behind:
            keeper.starts[local] = number, keeper.starts.get(local, (0, 0))[1]
            keeper.size += len(data)
            keeper.connection.send(data)

    @staticmethod
    def _start(epoch: Epoch, rank: Rank) -> start.Start:
        return start.Start(epoch.directory, rank.local, rank.number)

    def _keep_start(self, rank: Rank, number: int, record: bytes) -> between_agents.Keep:
        return between_agents.Keep(
            self._job, self._node, rank.number, number, 0, START, False, record
        )

    def _read(self, local: int) -> Entries | None:
        """The rank's records."""
        epoch = self._epoch
        assert epoch is not None
        if local not in self._entries:
            try:
                rank = epoch.ranks[local].number
                self._entries[local] = Entries(epoch.directory, local, rank)
            except (OSError, KeyError):
                return None
        return self._entries[local]

    def _acknowledged(self, keeper: _Keeper) -> None:
        for message in keeper.connection.received():
            epoch = self._epoch
            if epoch is None or epoch.dropped or not isinstance(message, between_agents.Kept):
                continue
            rank = epoch.find(message.rank)
            if rank is None:
                continue
            sent, has = keeper.starts.get(rank.local, (0, 0))
            if message.lack:
                self._refused(epoch, keeper, message.lack)
                continue
            if message.start:
                keeper.starts[rank.local] = sent, message.number
                continue
            if sent != has:  # lost, since messages are not reordered: all are sent again shortly
                continue
            keeper.kept[rank.local] = message.number
            if all(keeper.kept.get(local, 0) >= number for local, number in self._sent.items()):
                keeper.unanswered, keeper.size = None, 0
                if not keeper.active:
                    self._wait_again(epoch, keeper)
            self._copied(epoch, rank.local)

    def _copied(self, epoch: Epoch, local: int) -> None:
        """Let the rank continue if each keeper that ranks wait for has its record."""
        kept = [keeper.kept.get(local, 0) for keeper in self._keepers if keeper.active]
        if kept:
            epoch.page.copied(local, min(kept))

    def _refused(self, epoch: Epoch, keeper: _Keeper, why: str) -> None:
        """Ask it again later, and do not have ranks wait for it."""
        keeper.refused, keeper.unanswered, keeper.size = time.monotonic(), None, 0
        if not keeper.active:
            return
        keeper.active = False
        log.warning(
            "the node of the keeper at %s:%d has no memory for this node's records (%s): until it"
            " has, ranks continue %s. %s",
            *keeper.address,
            why,
            self._instead,
            room.REMEDY,
        )
        self._do_not_wait(epoch)

    @property
    def _instead(self) -> str:
        return "with the copies of the other" if self.active else "without copies"

    def _do_not_wait(self, epoch: Epoch) -> None:
        epoch.page.copying(self.active)
        for local in epoch.ranks:
            self._copied(epoch, local)

    def _wait_again(self, epoch: Epoch, keeper: _Keeper) -> None:
        log.info("a keeper of this node's records answers again")
        keeper.active = True
        epoch.page.copying(True)
        for local in epoch.ranks:
            self._copied(epoch, local)

    def _judge(self, now: float) -> None:
        """Stop waiting for silent keepers, which must not hold up training for long: if one is
        gone, the manager names another."""
        epoch = self._epoch
        for keeper in self._keepers:
            if epoch is None or epoch.dropped:
                continue
            if keeper.refused is not None and now - keeper.refused > ASKED_AGAIN:
                keeper.refused = None
                self._send_all(epoch, [keeper])
            if keeper.unanswered is None:
                continue
            # even to one that was given up: copying resumes as soon as it answers
            every = (AGAIN if keeper.active else PATIENCE) + keeper.size / SLOWEST
            if now - max(keeper.unanswered, keeper.tried) > every:
                log.warning(
                    "the keeper at %s:%d has not acknowledged records (sent %s, acknowledged %s):"
                    " all are sent again",
                    *keeper.address,
                    self._sent,
                    keeper.kept,
                )
                keeper.connection.close()
                keeper.connection = self._dial(keeper.address)
                self._send_all(epoch, [keeper])
            late = now - keeper.unanswered > PATIENCE
            if not late or not keeper.active:
                continue
            keeper.active = False
            log.error(
                "a keeper of this node's records has not answered for %.0f s: ranks continue %s",
                PATIENCE,
                self._instead,
            )
            self._do_not_wait(epoch)

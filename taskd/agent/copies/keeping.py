"""Keeps other nodes' records, and hands them to the agent that takes a lost node over.

The manager decides whose records are kept, and who gets them (permits.py).
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any

import zmq

from taskd.agent.copies.keeper_connection import MAX_BYTES
from taskd.agent.copies.permits import Permits
from taskd.core.job.snapshots import FEW, KINDS, LARGE, SLOTS, START
from taskd.logs import Drops
from taskd.messages import between_agents, codec, from_agent, to_agent
from taskd.protocol.gate import speaker
from taskd.records import room
from taskd.records import start as starts
from taskd.records.sealed import BadRecord, Seal

log = logging.getLogger("taskd.agent")


class Keeping:
    """`keeps` and `of` may be called from any thread, the rest from one."""

    def __init__(
        self,
        router: zmq.Socket[bytes],
        key: bytes,
        job: str,
        ask: Callable[[from_agent.May], None],
        ours: Callable[[int], list[between_agents.Keep] | None],
        generation: Callable[[], int],
    ) -> None:
        """`router` receives from other agents; `key` seals records. `ask` sends a question to the
        manager. `ours`: returns the records of a node's ranks if they run here, else None.
        `generation`: returns that of the job."""
        self._router, self._key, self._job, self._ours = router, key, job, ours
        self._drops = Drops(log)
        self._permits = Permits(ask, self._keep, self._hand_over, self._refuse)
        # node -> rank -> its records, oldest first
        self._kept: dict[int, dict[int, list[between_agents.Keep]]] = {}
        # node -> rank -> the generation in which its last record came
        self._since: dict[int, dict[int, int]] = {}
        self._starts: dict[int, dict[int, between_agents.Keep]] = {}  # node -> rank -> its start
        self._generation = generation

    def keeps(self) -> tuple[tuple[int, int, int], ...]:
        """Nodes whose records are kept here, each with the generation in which the last of each
        rank had come, and the newest step kept for all its ranks."""
        return tuple(
            (
                node,
                min(self._since[node].copy().values()),
                min(records[-1].step for records in ranks.copy().values()),
            )
            for node, ranks in sorted(self._kept.copy().items())
        )

    def forget(self) -> None:
        """Drop all records: all ranks start from the beginning, and agents send their records again
        once all are protected."""
        self._kept.clear()
        # what they came in stays: `keeps` may just be looking
        self._starts.clear()

    def of(self, node: int) -> list[between_agents.Keep]:
        """The step records kept for `node`."""
        return [keep for records in self._kept.get(node, {}).copy().values() for keep in records]

    def permit(self, answer: to_agent.Permit) -> None:
        """Handle the manager's answer to a question."""
        self._permits.answered(answer, time.monotonic())

    # -- the thread's poll -------------------------------------------------------------------------

    @property
    def waiting(self) -> bool:
        return self._permits.waiting

    def turn(self, ready: dict[Any, int]) -> None:
        self._permits.poll(time.monotonic())
        if self._router in ready:
            self._serve()

    def _serve(self) -> None:
        while True:
            try:
                frames = self._router.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            try:
                message = codec.TO_KEEPER.decode(frames[-1].bytes, MAX_BYTES)
            except codec.BadMessage as error:
                self._drops.add("a message to the keeper of records", str(error), time.monotonic())
                continue
            if getattr(message, "job", None) != self._job or len(frames) != 2:
                continue
            if isinstance(message, between_agents.Keep | between_agents.Fetch):
                self._permits.asked(
                    speaker(frames[0]), frames[0].bytes, message, len(frames[-1]), time.monotonic()
                )

    def _keep(self, route: bytes, message: between_agents.Keep) -> None:
        if refusal := self._refusal(message):
            log.error(
                "a record of rank %d for step %d is not kept: %s",
                message.rank,
                message.step,
                refusal,
            )
            return
        before = self._kept.get(message.node, {}).get(message.rank, [])
        start = self._starts.get(message.node, {}).get(message.rank)
        most = FEW if len(message.payload) > LARGE else SLOTS  # as many as the rank itself keeps
        kept = [] if message.anew else [k for k in before if k.step != message.step][1 - most :]
        gone = [start] if message.kind == START else [k for k in before if k not in kept]
        if lack := _lack(message, [k for k in gone if k is not None]):
            answer = between_agents.Kept(message.rank, message.number, message.kind == START, lack)
            self._answer(route, answer)
            return
        if message.kind == START:
            self._starts.setdefault(message.node, {})[message.rank] = message
            self._answer(route, between_agents.Kept(message.rank, message.number, True))
            return
        kept = [*kept, message]
        self._since.setdefault(message.node, {})[message.rank] = self._generation()
        # last, and with a rank: `keeps` may look at any time
        self._kept.setdefault(message.node, {message.rank: kept})[message.rank] = kept
        self._answer(route, between_agents.Kept(message.rank, message.number))

    def _refusal(self, keep: between_agents.Keep) -> str:
        """Why this is not a record of that rank and step, or ""."""
        if keep.kind not in (*KINDS, START):
            return f"kind {keep.kind}, known are {KINDS[0]} to {START}"
        try:
            seal = starts.seal_of if keep.kind == START else Seal
            seal(self._key, self._job, keep.rank).check(keep.payload, keep.step)
        except BadRecord as error:
            return str(error)
        return ""

    def _hand_over(self, route: bytes, message: between_agents.Fetch) -> None:
        ours = self._ours(message.node)
        starts = self._starts.get(message.node, {}).values()
        found = [*starts, *self.of(message.node)] if ours is None else ours
        for keep in found:
            self._answer(route, keep)
        self._answer(route, between_agents.Fetched(message.node, len(found)))

    def _refuse(self, route: bytes, message: between_agents.Fetch) -> None:
        self._answer(route, between_agents.Fetched(message.node, between_agents.REFUSED))

    def _answer(self, route: bytes, message: Any) -> None:
        with contextlib.suppress(zmq.ZMQError):  # it is gone, or does not read
            self._router.send_multipart([route, codec.encode(message)], zmq.NOBLOCK)


def _lack(new: between_agents.Keep, gone: list[between_agents.Keep]) -> str:
    """Why the node has no memory for `new` in the place of what is `gone` then; "" if it has. The
    training here comes first, and the records of its own ranks."""
    more = len(new.payload) - sum(len(keep.payload) for keep in gone)
    found = room.of_node() if more >= room.SMALL else None
    return found.lacks(more) if found is not None else ""

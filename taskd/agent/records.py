"""Copies of the ranks' records on another node: what is a rank's own (random numbers, loader
position, module buffers) and has no replica must outlive its node.

A rank writes its record for the start of a step into shared memory and says so through a pipe; this
thread sends it to the agent of another node, which the manager names, and lets the rank go into the
step's first collective when that has it. So whoever has committed a step knows that every rank's
record for its start is on two nodes. All agents listen for the records of others, and hand them to
the agent that takes a lost node's place. Whose records they take, and who gets them, the manager
says (permits.py).
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zmq

from taskd.agent.permits import Permits
from taskd.agent.ranks import Epoch
from taskd.core.snapshots import KINDS
from taskd.messages import between_agents, codec, from_agent, to_agent
from taskd.protocol import curve
from taskd.protocol.gate import Gate, speaker
from taskd.protocol.keys import Identity, Keys
from taskd.record import BadRecord, Seal
from taskd.vault import NOTE, NOTES, Entries, forget

log = logging.getLogger("taskd.agent")

MAX_BYTES = 1 << 30  # of a record: module buffers are in it
# seconds without an acknowledgement after which ranks do not wait any more; it comes within a round
# trip
PATIENCE = 5.0
KEPT = 3  # records of a rank, as the rank itself keeps


def listener(host: str, keys: Keys, context: zmq.Context[Any]) -> tuple[zmq.Socket[bytes], int]:
    """A ROUTER on any port of `host` for whoever knows the secret, and the port."""
    router = curve.server(context, host, keys, MAX_BYTES)
    return router, router.bind_to_random_port(curve.endpoint(host))


class Records:
    """`address` is where this agent takes others' records. Public methods may be called from any
    thread."""

    def __init__(
        self,
        host: str,
        keys: Keys,
        identity: Identity,
        job: str,
        ask: Callable[[from_agent.May], None],
    ) -> None:
        """`ask` puts a question to the manager, whose answer comes by `permit`; it is called in
        this object's thread."""
        self._keys, self._identity, self._job = keys, identity, job
        self._context: zmq.Context[Any] = zmq.Context()
        self._gate = Gate(
            self._context, keys, lambda address: log.warning("%s has no CURVE key", address)
        )
        self._router, port = listener(host, keys, self._context)
        self.address = (host, port)
        self._permits = Permits(ask, self._keep, self._hand_over, self._refuse)
        # node -> rank -> what is kept of it, oldest first
        self._others: dict[int, dict[int, list[between_agents.Keep]]] = {}
        self._out: zmq.Socket[bytes] | None = None  # to the agent that keeps ours
        self._epoch: Epoch | None = None
        self._node = 0
        self._pipe = -1
        self._entries: dict[int, tuple[int, Entries]] = {}  # local rank -> (inode, its records)
        self._sent: dict[int, int] = {}  # local rank -> number of the last record that was sent
        self._copied: dict[int, int] = {}  # local rank -> number of the last one that is kept
        self._unanswered: float | None = None  # since when an acknowledgement is waited for
        self._copying = False  # ranks wait for theirs
        self._fetching: dict[
            int,
            tuple[
                zmq.Socket[bytes],
                list[between_agents.Keep],
                Callable[[list[between_agents.Keep] | None], None],
            ],
        ] = {}
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._closing = False
        self._thread = threading.Thread(target=self._loop, name="taskd-records", daemon=True)
        self._thread.start()

    # -- any thread --------------------------------------------------------------------------------

    def begin(self, node: int, epoch: Epoch) -> None:
        """The ranks of `epoch` write records from now on."""
        self._call(lambda: self._begin(node, epoch))

    def keep_at(self, address: tuple[str, int]) -> None:
        """From now on the agent at `address` keeps our records; it gets all there are."""
        self._call(lambda: self._keep_at(address))

    def fetch(
        self,
        node: int,
        address: tuple[str, int],
        then: Callable[[list[between_agents.Keep] | None], None],
    ) -> None:
        """Have `then` called, in this object's thread, with the records of `node` that the agent at
        `address` keeps. Whoever waits has a deadline of its own: an agent that is gone does not
        answer."""
        self._call(lambda: self._fetch(node, address, then))

    def permit(self, answer: to_agent.Permit) -> None:
        """The manager has answered what was asked of it."""
        self._call(lambda: self._permits.answered(answer, time.monotonic()))

    def keeps(self) -> tuple[int, ...]:
        """Nodes whose records are kept here."""
        return tuple(sorted(self._others.copy()))

    def of(self, node: int) -> list[between_agents.Keep]:
        """What is kept of `node`."""
        return [keep for records in self._others.get(node, {}).copy().values() for keep in records]

    def close(self) -> None:
        self._closing = True
        self._call(lambda: None)
        self._thread.join(2.0)

    def _call(self, action: Callable[[], None]) -> None:
        self._calls.put(action)
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_write, b"\0")

    # -- the thread --------------------------------------------------------------------------------

    def _loop(self) -> None:
        while not self._closing:
            try:
                self._turn()
            except Exception:
                log.exception("the keeping of records goes on after an error")
        self._context.destroy(linger=0)

    def _turn(self) -> None:
        poller = zmq.Poller()
        for source in (self._router, self._gate.socket, self._wake_read):
            poller.register(source, zmq.POLLIN)
        if self._out is not None:
            poller.register(self._out, zmq.POLLIN)
        for line, _, _ in self._fetching.values():
            poller.register(line, zmq.POLLIN)
        if self._pipe >= 0:
            poller.register(self._pipe, zmq.POLLIN)
        waiting = self._unanswered is not None or self._permits.waiting
        ready = dict(poller.poll(1000 if waiting else None))
        if self._wake_read in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_read, 4096)
        if self._gate.socket in ready:
            self._gate.answer()
        while not self._calls.empty():
            self._calls.get()()
        if self._pipe in ready:
            self._forward()
        if self._out is not None and self._out in ready:
            self._acknowledged(self._out)
        now = time.monotonic()
        self._judge(now)
        self._permits.look(now)
        if self._router in ready:
            self._serve()
        for node, (line, _, _) in list(self._fetching.items()):
            if line in ready:
                self._arrived(node)

    # -- ours --------------------------------------------------------------------------------------

    def _begin(self, node: int, epoch: Epoch) -> None:
        if self._pipe >= 0:
            os.close(self._pipe)
        self._node, self._epoch, self._entries, self._sent = node, epoch, {}, {}
        # for writing too: a pipe without a writer would always be ready
        self._pipe = os.open(epoch.directory / NOTES, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        if self._out is not None:  # a keeper of processes that are gone
            self._out.close(0)
            self._out = None

    def _keep_at(self, address: tuple[str, int]) -> None:
        epoch = self._epoch
        if epoch is None or epoch.dropped:
            return
        if self._out is not None:
            self._out.close(0)
        self._out = self._dealer(address)
        self._copied, self._unanswered, self._copying = {}, None, True
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

    def _forward(self) -> None:
        """Ranks have written records."""
        try:
            data = os.read(self._pipe, NOTE.size * 1024)  # notes are written whole
        except BlockingIOError:
            return
        for local, _, number, step in NOTE.iter_unpack(data):
            self._sent[local] = number
            if self._out is not None:
                self._send(local, number, step, anew=False)

    def _send(self, local: int, number: int, step: int, anew: bool) -> None:
        epoch, out = self._epoch, self._out
        entries = self._read(local)
        rank = epoch.ranks.get(local) if epoch is not None else None
        found = entries.read(step) if entries is not None else None
        if found is None or rank is None or out is None:
            return  # overwritten already: a later one is on its way
        kind, payload = found
        message = between_agents.Keep(
            self._job, self._node, rank.number, number, step, kind, anew, payload
        )
        if self._unanswered is None:
            self._unanswered = time.monotonic()
        # the keeper has been away for long; the manager will name another one
        with contextlib.suppress(zmq.Again):
            out.send(codec.encode(message), zmq.NOBLOCK)

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

    def _acknowledged(self, out: zmq.Socket[bytes]) -> None:
        for message in _received(out):
            epoch = self._epoch
            rank = (
                epoch.find(message.rank)
                if isinstance(message, between_agents.Kept) and epoch is not None
                else None
            )
            if rank is not None and epoch is not None and not epoch.dropped:
                self._copied[rank.local] = message.number
                epoch.page.copied(rank.local, message.number)
                if all(
                    self._copied.get(local, 0) >= number for local, number in self._sent.items()
                ):
                    self._unanswered = None
                    if not self._copying:
                        log.info("records are kept on another node again")
                        self._copying = True
                        epoch.page.copying(True)
                        for other in epoch.ranks:
                            epoch.page.copied(other, self._copied.get(other, 0))

    def _judge(self, now: float) -> None:
        """A keeper that says nothing must not hold up training for long: where it is gone the
        manager names another one."""
        if self._unanswered is not None and self._copying and now - self._unanswered > PATIENCE:
            log.error(
                "the keeper of this node's records has not answered for %.0f s: ranks go on without"
                " copies",
                PATIENCE,
            )
            self._copying = False
            if self._epoch is not None and not self._epoch.dropped:
                self._epoch.page.copying(False)

    # -- others' -----------------------------------------------------------------------------------

    def _serve(self) -> None:
        while True:
            try:
                frames = self._router.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            try:
                message = codec.TO_KEEPER.decode(frames[-1].bytes, MAX_BYTES)
            except codec.BadMessage as error:
                log.warning("a message to the keeper of records was dropped: %s", error)
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
        ranks = self._others.setdefault(message.node, {})
        kept = [] if message.anew else ranks.get(message.rank, [])
        ranks[message.rank] = [*(k for k in kept if k.step != message.step), message][-KEPT:]
        self._answer(route, between_agents.Kept(message.rank, message.number))

    def _hand_over(self, route: bytes, message: between_agents.Fetch) -> None:
        found = (
            self._ours()
            if self._epoch is not None and message.node == self._node
            else self.of(message.node)
        )
        for keep in found:
            self._answer(route, keep)
        self._answer(route, between_agents.Fetched(message.node, len(found)))

    def _refuse(self, route: bytes, message: between_agents.Fetch) -> None:
        self._answer(route, between_agents.Fetched(message.node, between_agents.REFUSED))

    def _refusal(self, keep: between_agents.Keep) -> str:
        """Why this is no record of that rank and step, "" if it is one."""
        if keep.kind not in KINDS:
            return f"kind {keep.kind}, known are {KINDS[0]} to {KINDS[-1]}"
        try:
            Seal(self._keys.records, self._job, keep.rank).check(keep.payload, keep.step)
        except BadRecord as error:
            return str(error)
        return ""

    def _ours(self) -> list[between_agents.Keep]:
        """The records of this node's own ranks, which another agent is about to run."""
        epoch = self._epoch
        if epoch is None or epoch.dropped:
            return []
        out = []
        for rank in epoch.ranks.values():
            entries = self._read(rank.local)
            for step in entries.all() if entries is not None else []:
                if entries is not None and (found := entries.read(step)) is not None:
                    out.append(
                        between_agents.Keep(
                            self._job, self._node, rank.number, 0, step, found[0], False, found[1]
                        )
                    )
        return out

    def _answer(self, route: bytes, message: Any) -> None:
        with contextlib.suppress(zmq.ZMQError):  # it is gone, or does not read
            self._router.send_multipart([route, codec.encode(message)], zmq.NOBLOCK)

    # -- another node's ----------------------------------------------------------------------------

    def _fetch(
        self,
        node: int,
        address: tuple[str, int],
        then: Callable[[list[between_agents.Keep] | None], None],
    ) -> None:
        line = self._dealer(address)
        if (before := self._fetching.pop(node, None)) is not None:
            before[0].close(0)
        self._fetching[node] = (line, [], then)
        line.send(codec.encode(between_agents.Fetch(self._job, node)))

    def _arrived(self, node: int) -> None:
        line, found, then = self._fetching[node]
        for message in _received(line):
            if isinstance(message, between_agents.Keep):
                found.append(message)
            elif isinstance(message, between_agents.Fetched):
                del self._fetching[node]
                line.close(0)
                # what did not fit into the line is missing: half of the records are none
                then(found if len(found) == message.count else None)
                return

    def _dealer(self, address: tuple[str, int]) -> zmq.Socket[bytes]:
        line = curve.client(self._context, address[0], self._keys, self._identity, MAX_BYTES)
        line.connect(curve.endpoint(*address))
        return line


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


def _received(socket: zmq.Socket[bytes]) -> list[Any]:
    """The messages that have come; what is none is left out."""
    out: list[Any] = []
    while True:
        try:
            data = socket.recv(zmq.NOBLOCK)
        except zmq.Again:
            return out
        with contextlib.suppress(codec.BadMessage):
            out.append(codec.FROM_KEEPER.decode(data, MAX_BYTES))

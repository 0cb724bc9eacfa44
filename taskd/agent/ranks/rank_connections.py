"""The local socket of an agent: which process is which rank, and the ranks' messages. A rank may
send only in its own name."""

from __future__ import annotations

import functools
import logging
import os
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass

from msgspec import structs

from taskd.agent.ranks import threads
from taskd.agent.ranks.deaths import Deaths
from taskd.agent.ranks.model import Epoch, Node, Rank
from taskd.agent.ranks.processes import parent
from taskd.agent.ranks.rank_monitor import RankMonitor
from taskd.agent.ranks.replacements import Replacements
from taskd.logs import Drops
from taskd.messages import codec, from_rank, to_rank

log = logging.getLogger("taskd.agent")

AGAIN = 1.0  # seconds until a rank that waits is let in, where no descriptor was left
SILENT = 2.0  # seconds until a caller that says nothing is refused; a rank sends its hello at once
WAITING = 64  # callers that have sent nothing yet; the next one takes the place of the first
GENERATIONS = 64  # most processes between a rank's and one that it has started


NO_HELLO = "it has not named its rank"


class Stranger(codec.BadMessage):
    """Another user's process."""


@dataclass(frozen=True)
class Caller:
    """A connection whose first message is `hello`. `pid` comes from the kernel; 0 for a process
    that is invisible from here."""

    connection: socket.socket
    pid: int
    hello: from_rank.Hello


class RankConnections:
    """`name`: of the socket, in the abstract namespace."""

    def __init__(
        self,
        node: Node,
        deaths: Deaths,
        replacements: Replacements,
        monitor: RankMonitor,
        ready: Callable[[Epoch], None],
        given_up: Callable[[], bool],
        name: str,
    ) -> None:
        """`ready` is called when a rank waits for orders while the agent prepares for a node.
        `given_up`: whether ranks no longer wait for a manager."""
        self._node, self._deaths, self._replacements = node, deaths, replacements
        self._monitor, self._ready, self._given_up = monitor, ready, given_up
        self.name = name
        self.listener = socket.socket(
            socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        )
        self.listener.bind("\0" + name)
        self.listener.listen(64)
        # callers that connected before the process of their rank was known
        self._early: list[Caller] = []
        self._silent: dict[int, tuple[socket.socket, int, float]] = {}  # fd -> its pid, since when
        self._deaf = 0.0  # nobody is let in before
        self._drops = Drops(log)

    @property
    def listens(self) -> bool:
        return time.monotonic() >= self._deaf

    def accept(self) -> None:
        try:
            connection, _ = self.listener.accept()
        except BlockingIOError:
            return
        except OSError as error:  # the caller waits; no descriptor is left
            self._deaf = time.monotonic() + AGAIN
            text = f"a rank cannot connect: {error.strerror}"
            self._drops.add("an attempt to let a rank in", text, time.monotonic())
            return
        try:
            pid = identify(connection)
        except (OSError, Stranger) as error:
            self._refuse(connection, error)
            return
        if len(self._silent) >= WAITING:
            self._refuse(self._silent.pop(next(iter(self._silent)))[0], TimeoutError(NO_HELLO))
        self._silent[connection.fileno()] = connection, pid, time.monotonic()
        self.greet(connection.fileno())

    @property
    def callers(self) -> list[int]:
        """The descriptors of those that have not named themselves yet."""
        return list(self._silent)

    def greet(self, fd: int) -> None:
        """Let a caller in that has named itself."""
        connection, pid, _ = self._silent[fd]
        if (data := received(connection)) is None:
            return
        del self._silent[fd]
        try:
            self._admit(Caller(connection, pid, codec.HELLO.decode(data)))
        except (OSError, codec.BadMessage) as error:
            self._refuse(connection, error)

    def expire(self) -> None:
        """Refuse callers that have been silent for too long."""
        now = time.monotonic()
        for fd, (connection, _, since) in list(self._silent.items()):
            if now - since > SILENT:
                del self._silent[fd]
                self._refuse(connection, TimeoutError(NO_HELLO))

    def _admit(self, caller: Caller) -> None:
        """Connect a caller to its rank. Raises BadMessage."""
        hello, epoch = caller.hello, self._node.epoch
        if self._node.next is not epoch:
            # its launcher starts the ranks of the next epoch, and has not handed them over yet
            self._early.append(caller)
            return
        rank = epoch.find(hello.rank) if epoch else None
        if epoch is None or rank is None or hello.incarnation != rank.incarnation:
            raise codec.BadMessage(
                f"rank {hello.rank}, incarnation {hello.incarnation}, is not expected"
            )
        first = isinstance(hello, from_rank.RankHello)
        if first and rank.channel is not None and closed(rank.channel):
            # it connects a second time, before its first end was read
            rank.channel.close()
            rank.channel = None
        if (rank.channel if first else rank.control) is not None:
            raise codec.BadMessage(f"rank {hello.rank} is connected already")
        zygote = self._replacements.zygote
        forked = zygote is not None and belongs(caller.pid, zygote.pid)
        if not rank.pid and (forked or self._node.starts):
            # just started, and faster than the report of its pid
            self._early.append(caller)
            return
        if not belongs(caller.pid, rank.pid):
            raise codec.BadMessage(
                f"process {caller.pid} is not rank {rank.number} (pid {rank.pid}), and was not"
                " started by it"
            )
        if not first:
            rank.control = caller.connection
            if self._node.profile:
                self._monitor.ask(rank, to_rank.Profile(self._node.profile))
            return
        rank.channel = caller.connection
        rank.device = getattr(hello, "device", "")
        incarnation, pid = rank.incarnation, rank.pid
        watch = functools.partial(self._deaths.watch, epoch, rank, incarnation, pid)
        # without it the rank's pidfd reports its death, later
        threads.run(f"taskd-watch-{rank.local}", watch, here=False)
        # what arrived with the hello is read at the next turn: the socket is ready at once

    def process_known(self) -> None:
        """Processes of ranks are known now: check again the callers that were too early."""
        early, self._early = self._early, []
        for caller in early:
            try:
                self._admit(caller)
            except codec.BadMessage as error:
                self._refuse(caller.connection, error)

    def _refuse(self, connection: socket.socket, why: Exception) -> None:
        kind = "a connection to the agent's socket"
        if isinstance(why, Stranger):  # counted apart: they must not hide the job's own
            kind += " by another user"
        self._drops.add(kind, str(why), time.monotonic())
        connection.close()

    def hear(self, epoch: Epoch, rank: Rank, fd: int) -> None:
        connection = next(
            (c for c in (rank.channel, rank.control) if c is not None and c.fileno() == fd),
            None,
        )
        if connection is None:
            return
        if (data := received(connection)) is None:
            return
        if not data:
            if connection is rank.channel:
                rank.channel = None
            else:
                rank.control = None
            connection.close()
            return
        try:
            message = codec.FROM_RANK.decode(data)
        except codec.BadMessage as error:
            text = f"rank {rank.number}: {error}"
            self._drops.add("an invalid message of a rank", text, time.monotonic())
            return
        if (
            getattr(message, "rank", None) != rank.number
            or getattr(message, "incarnation", rank.incarnation) != rank.incarnation
        ):
            text = f"{type(message).__name__} of rank {rank.number}"
            self._drops.add("a message for another rank or process", text, time.monotonic())
            return
        if isinstance(message, from_rank.Progress):
            self._monitor.here(epoch, rank, message)
            return
        if isinstance(message, from_rank.Injected):
            self._monitor.injected(rank, message)
            return
        if isinstance(message, from_rank.StepsPlanned):
            rank.total = message.total
            return
        if isinstance(message, from_rank.RankJoined):
            rank.joined, rank.handlers, rank.dumps = True, message.handlers, message.dumps
            self._node.news.set()  # a launcher may get ready to replace it
            if self._given_up():
                self._node.send_to_rank(rank, to_rank.Unprotected("no manager answered"))
        elif isinstance(message, from_rank.NotProtected):
            epoch.refusal = message
        elif isinstance(message, from_rank.RankRaised):
            rank.leaves_by = message.text
        elif isinstance(message, from_rank.RankInterrupted):
            rank.interrupted = message.interruption
            message = structs.replace(message, idle=rank.idle)
        elif isinstance(message, from_rank.RankRestored):
            rank.restored = message.generation
        elif isinstance(message, from_rank.OptimizerReplicas):
            rank.replicas, rank.handlers = message, True  # a replacement does not join
        elif isinstance(message, from_rank.GroupReady):
            rank.connected = True
        elif isinstance(message, from_rank.RankReady):
            rank.ready = True
            if self._node.preparing:
                self._ready(epoch)
        if not self._node.preparing:
            self._node.report(message)


def identify(connection: socket.socket) -> int:
    """The caller's pid, from the kernel; 0 for a process that is invisible from here. Raises
    Stranger, OSError."""
    pid, uid, _ = struct.unpack(
        "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    )
    if uid != os.getuid():
        raise Stranger(f"a process of user {uid}")
    connection.setblocking(False)
    return int(pid)


def received(connection: socket.socket) -> bytes | None:
    """The next message; b"" where the other end is closed, None where none has come."""
    try:
        return connection.recv(codec.MAX_BYTES)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def belongs(pid: int, ancestor: int) -> bool:
    """Whether process `pid` is `ancestor` or its descendant: under a wrapper, such as a shell, the
    rank is the wrapper's child."""
    for _ in range(GENERATIONS):
        if pid == ancestor:
            return pid > 0
        if pid <= 1:
            return False
        pid = parent(pid)
    return False


def closed(connection: socket.socket) -> bool:
    """Whether the other end is closed, and everything from it was read."""
    try:
        return not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True

"""The agent's data: a rank with its current process, an epoch (one start of all ranks), and the
node."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import socket
import subprocess
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from taskd.agent.ranks import shared_memory
from taskd.cython_api.page import Page
from taskd.messages import codec, from_rank, to_agent, to_rank
from taskd.messages.values import Position
from taskd.protocol.mailbox import Action, Mailbox

log = logging.getLogger("taskd.agent")


@dataclass
class Rank:
    """One local rank and its present process."""

    number: int
    local: int
    process: Any  # subprocess.Popen or Forked; None between two
    pidfd: int | None
    stacks: int  # read end of its pipe, see stacks.py
    incarnation: int = 0
    channel: socket.socket | None = None  # to its training thread
    control: socket.socket | None = None  # to the thread that answers while it trains
    device: str = ""  # see from_rank.RankHello
    joined: bool = False
    dumps: tuple[str, ...] = ()  # see from_rank.RankJoined
    idle: float | None = None  # at its last interruption, see from_rank.RankInterrupted
    in_place: bool = False  # its process has replaced one of this node
    stateless: bool = False  # its process is a replacement that does not have its state yet
    ready: bool = False  # and it waits for orders
    restored: int = 0  # the generation in which it was last given its state
    handlers: bool = False  # its framework repairs itself, see from_rank.RankJoined
    replicas: from_rank.OptimizerReplicas | None = None  # for a manager that is new
    connected: bool = False  # its process group exists, see from_rank.GroupReady
    killed: str = ""  # why this agent has killed its process
    over: str | None = None  # how its process ended
    away: bool = False  # the job goes on without it, until it gets another process
    raised: str = ""  # the exception that ended it, in one line
    traceback: str = ""  # of that exception, or what its threads did when it hung
    step: int = -1  # the next one that it would have begun, if it has ended well
    leaves_by: str = ""  # the exception that has left its attempt, in one line
    quit: bool = False  # it has ended with status 0, but in the middle of its loop
    left_loop: bool = False  # see from_agent.RankEnded
    left: Position | None = None
    # the incarnations of which `left` is, and whose records a thread is reading
    left_by: int = -1
    reading: int = -1
    total: int = 0  # its loop ends before this step; 0: unknown
    interrupted: int = 0  # number of the last interruption it reported
    damages: int = 0  # of its process that have been reported
    # requests that it has not answered -> its process, in words
    injections: dict[str, str] = field(default_factory=dict)

    @property
    def pid(self) -> int:
        return self.process.pid if self.process is not None else 0

    @property
    def gone(self) -> bool:
        """Whether its process has ended, though that may not have been reported yet."""
        return self.over is not None or self.reading == self.incarnation

    @property
    def failed(self) -> bool:
        return self.over not in (None, "ended well") and not self.away

    @property
    def done(self) -> bool:
        """Whether it has no more to do, for now."""
        return self.away or self.over == "ended well"

    def forget_process(self) -> None:
        """Close what belongs to the present process."""
        for connection in (self.channel, self.control):
            if connection is not None:
                connection.close()
        self.channel = self.control = None
        if self.pidfd is not None:
            os.close(self.pidfd)
        self.pidfd = None


@dataclass
class Epoch:
    """One start of all the node's ranks."""

    number: int
    directory: Path
    page: Page
    lock: int = -1  # of the directory, see shared_memory.py
    pipes: dict[int, int] = field(default_factory=dict)  # by local rank; read ends, see stacks.py
    ranks: dict[int, Rank] = field(default_factory=dict)  # by local rank
    generation: int = 0
    interruption: int = 0
    released: int = -1  # no step before this one will be repeated
    protected: bool = False
    # a rank's word that it cannot be protected, and why none of them is, by the manager's order
    refusal: from_rank.NotProtected | None = None
    unprotected: str = ""
    passing: bool = False  # its ranks are paused temporarily, by a manager that may be gone
    for_move: bool = False  # and for the move of a node
    moving: bool = False  # the newest interruption came in such a pause
    moves_to: str = ""  # the standby that this node was given to
    former: str = ""  # the agent that had this node until it moved here
    # (rank, who stands in for it), since the ranks last resumed, in which generation, and of the
    # newest communicators
    resumed: int = 0
    stand_ins: tuple[tuple[int, int], ...] = ()
    building: tuple[tuple[int, int], ...] = ()
    dropped: bool = False
    held: list[int] = field(default_factory=list)  # of memory files, see shared_memory.py

    def find(self, number: int) -> Rank | None:
        """The rank of that global number, or None."""
        return next((r for r in self.ranks.values() if r.number == number), None)

    @property
    def has_state(self) -> bool:
        """Whether each rank lives and has its state in the current generation. Before the node is
        part of the job, in generation 0, none has."""
        return self.generation > 0 and all(
            r.away or (r.over is None and r.restored == self.generation)
            for r in self.ranks.values()
        )

    @property
    def vanished(self) -> str:
        """The sentence that says that somebody has removed the directory, or ""."""
        return shared_memory.vanished(self.directory, self.lock)

    @property
    def memory(self) -> int:
        """Bytes that the records and stripes of its ranks take."""
        total = 0
        for fd in self.held:
            with contextlib.suppress(OSError):  # just dropped, by another thread
                total += os.fstat(fd).st_blocks * 512
        return total

    def drop(self) -> None:
        self.dropped = True
        for rank in self.ranks.values():
            rank.forget_process()
        # one that was prepared and never begun has pipes and no ranks
        for pipe in {*self.pipes.values(), *(rank.stacks for rank in self.ranks.values())}:
            with contextlib.suppress(OSError):
                os.close(pipe)
        lock, held, self.lock, self.held = self.lock, self.held, -1, []
        shared_memory.remove(self.directory, lock, held)


@dataclass(frozen=True)
class Verdict:
    """What the launcher must do, decided by the agent's thread: "native" (proceed as without
    taskd), "wait" (a repair is under way), "restart" (see `restart`), "give up". `moved`: the job
    goes on without this node, where nothing had failed."""

    what: Literal["native", "wait", "restart", "give up"]
    reason: str = ""
    restart: to_agent.RestartAll | None = None
    ending: to_agent.Ending = "failed"
    moved: bool = False


@dataclass
class Preparation:
    """A node that an agent without one has prepared for, or is preparing for: see standby.py."""

    order: to_agent.Prepare
    manager: tuple[int, str]  # that ordered it
    taken: bool = False  # the node is ours, and its ranks are getting their state
    former: str = ""  # the agent that had it
    ready: bool = False


class Node(ABC):
    """The state that the agent's parts share: the node's ranks, and the decisions about them. Used
    by the agent's thread except where noted."""

    def __init__(self) -> None:
        self.mailbox = Mailbox()
        self._lock = threading.Lock()
        self._verdict: Verdict | None = None
        self.epoch: Epoch | None = None
        self._old: Epoch | None = None  # stopped, not removed yet
        self.next: Epoch | None = None  # its processes are about to be started
        self.node, self.nodes = 0, 1
        self.store: Any = None  # where ranks meet that are restarted
        self.store_address = ("", 0)
        self.preparation: Preparation | None = None
        self.context: Any = None  # torch's SubprocessContext
        # replaced processes that must be reaped
        self.retired: list[subprocess.Popen[bytes]] = []
        self.profile: tuple[int, ...] = ()  # the ranges that its ranks profile, see to_rank.Profile
        self.left = False  # this node has reported that it ended well
        self.starts = False  # the launcher starts replacements itself (msrun)
        # and those that it has to start, as (local rank, incarnation)
        self.wanted: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
        # a rank has ended, there is a verdict, or the job is over: the launcher's thread may wait
        self.news = threading.Event()
        self.over = threading.Event()  # the job is over, or no manager is left to say so

    @abstractmethod
    def report(self, message: Any) -> None:
        """Send to the manager."""

    def call(self, action: Action) -> None:
        """Run `action` in the agent's thread. From any thread."""
        self.mailbox.put(action)

    def send_to_ranks(self, epoch: Epoch, message: Any) -> None:
        for rank in epoch.ranks.values():
            self.send_to_rank(rank, message)

    def send_to_rank(self, rank: Rank, message: Any) -> None:
        if rank.channel is not None:
            with contextlib.suppress(OSError):  # it is dying; its death will be reported
                rank.channel.send(codec.encode(message))

    @property
    def preparing(self) -> bool:
        """Whether its agent prepares for a node: nothing that happens on that node is reported."""
        preparation = self.preparation
        return preparation is not None and not preparation.taken

    # -- epochs ------------------------------------------------------------------------------------

    def adopt(self, epoch: Epoch) -> None:
        """Make `epoch` the current one; its processes run or are about to start. An order to end
        the job that arrived meanwhile stays in force. From any thread."""
        with self._lock:
            self.epoch = epoch
            if self._verdict is not None and self._verdict.what == "restart":
                self._verdict = None

    def protect(self, epoch: Epoch, protected: bool = True) -> None:
        """Mark the ranks of `epoch` as protected or not."""
        with self._lock:
            epoch.protected = protected

    def is_over(self, epoch: Epoch) -> bool:
        """Whether the node's ranks have ended well and are not needed again. In a job of several
        nodes, others may still train and need ranks that have left their loop, until the manager
        sends `Release`."""
        ranks = epoch.ranks.values()
        ended = [r.step for r in ranks if not r.away]
        if not all(r.done for r in ranks):
            return False
        if not ended:  # all of them are away, and may come back
            return self.over.is_set()
        return self.nodes == 1 or max(ended) <= epoch.released

    def stopping(self) -> None:
        """The launcher is about to stop its processes: their ends are not faults. From any
        thread."""
        with self._lock:
            if (epoch := self.epoch) is not None:
                self._old = epoch
            self.epoch = None
        if epoch is not None:
            # one that waits for orders, such as a repair, goes on alone, and can end
            alone = to_rank.Unprotected(to_rank.ENDED)
            self.call(lambda: self.send_to_ranks(epoch, alone))

    def unless_stopping(self, epoch: Epoch, put: Callable[[], bool]) -> bool:
        """Run `put`, which hands a process to the launcher, and return its result; False if the
        launcher is already stopping the processes of `epoch`. What was handed over before is
        stopped with them."""
        with self._lock:
            return self.epoch is epoch and put()

    def epochs(self) -> list[Epoch]:
        """The epochs whose shared memory exists. From any thread."""
        known = {id(e): e for e in (self.epoch, self._old, self.next) if e is not None}
        return [e for e in known.values() if not e.dropped]

    def drop_epochs(self) -> None:
        """Remove all epochs and their shared memory. Called by the launcher's thread."""
        for epoch in self.epochs():
            epoch.drop()
        self.epoch = self._old = self.next = None

    # -- deciding ----------------------------------------------------------------------------------

    def decide(self, verdict: Verdict) -> None:
        if verdict.what == "give up":  # the launcher says why, at its end
            log.info("%s", verdict.reason)
        else:
            log.warning("all ranks are restarted: %s", verdict.reason)
        with self._lock:
            self._verdict = verdict
        self.news.set()

    @property
    def decided(self) -> Verdict | None:
        """The last verdict on the current epoch. From any thread."""
        with self._lock:
            return self._verdict


def pidfd(pid: int) -> int | None:
    """Open a pidfd; None if the process is gone."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None

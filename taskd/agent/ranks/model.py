"""What an agent knows of its ranks: each with its present process, and one start of all of them;
and what it has decided about them."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from taskd.cython_api.page import Page
from taskd.messages import to_agent
from taskd.messages.values import Position, ReplicaGroups


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
    control_thread: socket.socket | None = None  # to the thread that answers while it trains
    joined: bool = False
    blank: bool = False  # its process is a replacement that does not have its state yet
    ready: bool = False  # and it waits for orders
    restored: int = 0  # the generation in which it was last given its state
    handlers: bool = False  # its framework repairs itself, see from_rank.RankJoined
    groups: ReplicaGroups = ()  # see from_rank.OptimizerReplicas
    connected: bool = False  # its process group exists, see from_rank.GroupReady
    killed: str = ""  # why this agent has killed its process
    over: str | None = None  # how its process ended
    raised: str = ""  # the exception that ended it, in one line
    step: int = -1  # the next one that it would have begun, if it has ended well
    left: Position | None = None
    total: int = 0  # its loop ends before this step; 0: the script has not said
    interrupted: int = 0  # number of the last interruption it reported
    damages: int = 0  # of its process that have been reported
    injections: list[str] = field(default_factory=list)  # requests that it has not answered

    @property
    def pid(self) -> int:
        return self.process.pid if self.process is not None else 0

    @property
    def failed(self) -> bool:
        return self.over not in (None, "ended well")

    def forget_process(self) -> None:
        """Close what belongs to the present process."""
        for line in (self.channel, self.control_thread):
            if line is not None:
                line.close()
        self.channel = self.control_thread = None
        if self.pidfd is not None:
            os.close(self.pidfd)
        self.pidfd = None


@dataclass
class Epoch:
    """One start of all the node's ranks."""

    number: int
    directory: Path
    page: Page
    pipes: dict[int, int] = field(default_factory=dict)  # by local rank; read ends, see stacks.py
    ranks: dict[int, Rank] = field(default_factory=dict)  # by local rank
    generation: int = 0
    interruption: int = 0
    released: int = -1  # no step before this one will be repeated
    protected: bool = False
    passing: bool = False  # its ranks are paused temporarily, by a manager that may be gone
    for_move: bool = False  # and for the move of a node
    moving: bool = False  # the newest interruption came in such a pause
    moves_to: str = ""  # the standby that this node was given to
    former: str = ""  # the agent that had this node until it moved here
    dropped: bool = False

    def find(self, number: int) -> Rank | None:
        """The rank of that global number, or None."""
        return next((r for r in self.ranks.values() if r.number == number), None)

    @property
    def has_state(self) -> bool:
        """Whether each rank lives and has got its state in the present generation. Before the node
        is part of the job, in generation 0, none has."""
        return self.generation > 0 and all(
            r.over is None and r.restored == self.generation for r in self.ranks.values()
        )

    def drop(self) -> None:
        self.dropped = True
        for rank in self.ranks.values():
            rank.forget_process()
            with contextlib.suppress(OSError):
                os.close(rank.stacks)
        shutil.rmtree(self.directory, ignore_errors=True)


@dataclass(frozen=True)
class Verdict:
    """What the launcher must do, as the agent's thread says: "native" (its own way), "wait" (a
    repair is under way), "restart" (as `restart` says), "give up"."""

    what: Literal["native", "wait", "restart", "give up"]
    reason: str = ""
    restart: to_agent.RestartAll | None = None


def pidfd(pid: int) -> int | None:
    """Open a pidfd; None if the process is gone."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None

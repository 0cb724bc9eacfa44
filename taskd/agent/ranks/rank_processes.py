"""Starts, kills and replaces the processes of this node's ranks.

Used by the agent's thread.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from taskd.agent.ranks import threads
from taskd.agent.ranks.children import GONE, Children, marks
from taskd.agent.ranks.deaths import Deaths
from taskd.agent.ranks.model import Epoch, Node, Rank, pidfd
from taskd.agent.ranks.processes import Forked, Handler, Ordered, signal_group
from taskd.agent.ranks.rank_connections import RankConnections
from taskd.agent.ranks.replacements import IN_PLACE, Order, Replacements

log = logging.getLogger("taskd.agent")


@dataclass
class RankProcesses:
    node: Node
    children: Children
    deaths: Deaths
    replacements: Replacements
    connections: RankConnections

    def end(self, epoch: Epoch, rank: Rank, incarnation: int) -> None:
        """Kill the process of that incarnation, but no later one."""
        if rank.incarnation != incarnation or rank.gone or epoch.dropped:
            return
        self.kill(rank)
        if rank.process is None:  # it has not been started yet, and will be killed when it is
            self.deaths.ended(epoch, rank, -signal.SIGKILL)

    def replace(self, epoch: Epoch, rank: Rank, incarnation: int) -> None:
        if incarnation <= rank.incarnation:
            return  # repeated
        # a dying process whose end has not been seen; it must not share the slot
        if rank.over is None:
            self.kill(rank)
        elif rank.pidfd is not None:  # a wrapper may go on after its rank
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(rank.pidfd, signal.SIGKILL)
        before = marks(epoch, rank.local, rank.incarnation), rank.pid
        last: int | None = None
        if rank.device and rank.pidfd is not None:
            with contextlib.suppress(OSError):
                last = os.dup(rank.pidfd)
        rank.in_place = rank.in_place or rank.pid > 0
        rank.forget_process()
        if isinstance(rank.process, subprocess.Popen):
            self.node.retired.append(rank.process)
        rank.process = None  # later reports about the old one must not count for the new one
        rank.over, rank.incarnation, rank.joined, rank.damages = None, incarnation, True, 0
        rank.quit, rank.left_loop, rank.leaves_by, rank.away = False, False, "", False
        rank.raised = rank.traceback = rank.killed = ""
        rank.stateless, rank.ready, rank.restored = True, False, 0
        try:
            epoch.page.reset(rank.local)
        # its last process was killed and is still dying; 5 s is far more than a thread needs
        except OSError:
            epoch.page.wait_death(rank.local, 5000)
            try:
                epoch.page.reset(rank.local)
            except OSError as error:  # in uninterruptible sleep
                why = f"cannot be replaced: its last process does not end ({error.strerror})"
                self.deaths.ended(epoch, rank, 1, why=why)
                if last is not None:
                    os.close(last)
                return

        def start() -> None:
            if rank.incarnation == incarnation and not rank.gone and not epoch.dropped:
                self.start(rank)

        def once_gone() -> None:
            if last is None:
                start()
            else:
                threads.run("taskd-gone", lambda: self._once_gone(last, rank.number, start))

        if before[1]:  # children of the old process may block the next
            self.children.once_ended(*before, once_gone)
        else:
            once_gone()

    def _once_gone(self, last: int, number: int, start: Callable[[], None]) -> None:
        """Start once the process of the pidfd `last` is gone: then its device's memory is free, not
        when its main thread is."""
        try:
            poll = select.poll()
            poll.register(last, select.POLLIN)
            if not poll.poll(1e3 * GONE):
                text = "rank %d: its last process is not gone after %g s, and may still have memory"
                log.warning(text + " of its device", number, GONE)
        finally:
            os.close(last)
            self.node.call(start)

    def leave(self, epoch: Epoch, rank: Rank) -> None:
        """The job goes on without the rank: nobody waits for it, and its process is no failure."""
        if rank.away:
            return
        rank.away = True
        if rank.over is None:
            self.kill(rank)
        epoch.page.away(rank.local)
        ended = Ordered()
        ended.end(0)
        if self.node.context is not None:  # msrun has none
            self.node.context.subprocess_handlers[rank.local] = Handler(ended, rank.local)

    def start(self, rank: Rank) -> None:
        """Order the rank's present process to be started."""
        if self.node.starts:
            self.node.wanted.put((rank.local, rank.incarnation))
            self.node.news.set()
            return
        context = self.node.context
        self.replacements.start(
            Order(
                rank=rank.number,
                incarnation=rank.incarnation,
                entrypoint=context.entrypoint,
                arguments=tuple(str(a) for a in context.args[rank.local]),
                environment={
                    **os.environ,
                    **context.envs[rank.local],
                    "TASKD_INCARNATION": str(rank.incarnation),
                    **(IN_PLACE if rank.in_place else {}),
                },
                stdout=context.stdouts[rank.local],
                stderr=context.stderrs[rank.local],
            )
        )

    def kill(self, rank: Rank) -> None:
        if rank.process is not None:
            signal_group(rank.process, signal.SIGKILL)

    def started(self, order: Order, process: Any) -> None:
        """Put the new process where torch's launcher looks for its rank, unless a newer one has
        been ordered since, or the launcher is about to stop."""
        epoch, rank = self.node.epoch, self._wanted(order)
        if epoch is None or rank is None:
            process.send_signal(signal.SIGKILL)
            return
        local = rank.local

        def put() -> bool:
            handlers = self.node.context.subprocess_handlers
            if isinstance(handlers[local], Handler):
                return bool(handlers[local].take(process))
            handlers[local] = Handler(process, local)
            return True

        if not self.node.starts and not self.node.unless_stopping(epoch, put):
            process.send_signal(signal.SIGKILL)
            return
        self._runs(rank, process)

    def _wanted(self, order: Order) -> Rank | None:
        """The rank whose present process was ordered so, and has not ended; None: none any more."""
        epoch = self.node.epoch
        if epoch is None or order.environment.get("TASKD_SHARED_DIR") != str(epoch.directory):
            return None
        rank = epoch.find(order.rank)
        wanted = rank is not None and rank.incarnation == order.incarnation and not rank.gone
        return rank if wanted else None

    def failed(self, order: Order, why: str) -> None:
        """The process could not be started."""
        epoch, rank = self.node.epoch, self._wanted(order)
        if epoch is None or rank is None:
            return
        context = self.node.context  # msrun has none
        handler = context.subprocess_handlers[rank.local] if context is not None else None
        if isinstance(handler, Handler) and isinstance(handler.proc, Ordered):
            handler.proc.end(1)  # torch's launcher waits for it
        self.deaths.ended(epoch, rank, 1, why=why)

    def started_by_launcher(
        self, epoch: Epoch, local: int, incarnation: int, process: Forked
    ) -> None:
        """Note that the launcher has started a requested process."""
        rank = epoch.ranks[local]
        if epoch.dropped or rank.incarnation != incarnation or rank.gone:
            process.send_signal(signal.SIGKILL)
            return
        self._runs(rank, process)

    def _runs(self, rank: Rank, process: Any) -> None:
        rank.process, rank.pidfd = process, pidfd(process.pid)
        what = f"replacement {rank.incarnation}" if rank.incarnation else "its first process"
        log.info("rank %d: %s is pid %d", rank.number, what, process.pid)
        self.connections.process_known()

    def forked_ended(self, process: Forked, status: int) -> None:
        epoch = self.node.epoch
        for rank in epoch.ranks.values() if epoch else ():
            if rank.process is process and epoch is not None:
                self.deaths.ended(epoch, rank, status)

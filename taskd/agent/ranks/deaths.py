"""Detects when ranks end, and distinguishes faults from completed work."""

from __future__ import annotations

import contextlib
import logging
import signal
from collections.abc import Callable
from dataclasses import dataclass, field

from taskd import raised
from taskd.agent.ranks import threads
from taskd.agent.ranks.children import Children, marks
from taskd.agent.ranks.model import Epoch, Node, Rank
from taskd.agent.ranks.process_limits import OutOfMemory
from taskd.agent.ranks.processes import Forked, describe, exit_code, leaving, noted_code, reaped
from taskd.agent.ranks.rank_monitor import RankMonitor
from taskd.agent.ranks.replacements import Replacements
from taskd.agent.ranks.watchdog import BETWEEN, ENDING, TRAINING
from taskd.cython_api import slot
from taskd.messages import from_agent
from taskd.messages.values import Position
from taskd.records import store

log = logging.getLogger("taskd.agent")

WELL = ("SystemExit: 0", "SystemExit: None", "SystemExit")  # exceptions that end with status 0


@dataclass
class Deaths:
    """`unprepared` is called for a rank that has ended while the agent prepares for a node."""

    node: Node
    children: Children
    replacements: Replacements
    monitor: RankMonitor
    unprepared: Callable[[Rank], None]
    _memory: OutOfMemory = field(default_factory=OutOfMemory)

    def watch(self, epoch: Epoch, rank: Rank, incarnation: int, pid: int) -> None:
        """Wait for the rank's death, in its own thread: the kernel wakes it ~50 us after the rank's
        main thread is gone, however large its memory. Then end its children before its files are
        closed, since a resource tracker among them waits for that. `pid`: of the rank or its
        wrapper."""
        with contextlib.suppress(OSError, ValueError):
            epoch.page.wait_death(rank.local)
            self.node.call(lambda: self.gone(epoch, rank, incarnation))
            view = epoch.page.read(rank.local)
            if view.phase not in ENDING and leaving(view.pid):
                of = marks(epoch, rank.local, incarnation)
                self.children.end(of, pid, view.pid, pid)

    def gone(self, epoch: Epoch, rank: Rank, incarnation: int) -> None:
        if rank.incarnation != incarnation or rank.over is not None or self.node.epoch is not epoch:
            return
        view = epoch.page.read(rank.local)
        if not leaving(view.pid):
            return  # the mutex was released without a death (exec): the pidfd will report the death
        # an interpreter that ends by itself writes DONE first; its exit code is worth waiting for
        if view.phase not in ENDING:
            # the zygote may have reaped it and reported how it ended
            self.replacements.hear()
            code = exit_code(rank.pidfd, rank.process)
            # a wrapper's child is not our process
            self.ended(epoch, rank, noted_code(view.pid) if code is None else code, certain=True)

    def ended(
        self,
        epoch: Epoch,
        rank: Rank,
        code: int | None,
        certain: bool = False,
        why: str = "",
    ) -> None:
        """Handle the end of a rank's process; `certain`: it is dying, even if no exit code is known
        yet; `why`: the cause, if that is not its exit code."""
        if rank.over is not None:
            return
        if (
            code is None
            and isinstance(rank.process, Forked)
            and (not certain or reaped(rank.process.pid))
            and self.replacements.reports_end_of(rank.process)
        ):
            return  # the zygote will report the code
        view = epoch.page.read(rank.local)
        if code is None:  # os._exit() leaves a record before the kernel has a status
            code = next(
                (
                    r["code"]
                    for r in reversed(epoch.page.records(rank.local))
                    if r["kind"] == "exit"
                ),
                None,
            )
        if self.node.preparing:
            rank.over = why or describe(
                code, epoch.page.records(rank.local), memory=self._memory.took_one
            )
            self._note_raised(epoch, rank, view.pid)
            self.unprepared(rank)
            return
        if not self._has_read(epoch, rank, code, why):
            return
        if (
            isinstance(rank.process, Forked)
            and rank.process.returncode is None
            and not self.replacements.reports_end_of(rank.process)
        ):
            # torch's launcher reads it
            rank.process.end(-signal.SIGKILL if code is None else code)
        if code == 0 and (not epoch.protected or view.phase in (slot.SETUP, *BETWEEN, *ENDING)):
            rank.over, rank.step = "ended well", view.step
            rank.quit = epoch.protected and view.step > epoch.released
            rank.left_loop = view.phase == slot.QUIT
            self.report_end(rank)
            return
        cause = why or describe(
            code, epoch.page.records(rank.local), rank.killed, self._memory.took_one
        )
        if code == 0:  # sys.exit() in mid-training: the other ranks wait for this one
            cause += (
                f" in the middle of step {view.step}"
                if view.phase in TRAINING
                else f" in phase {slot.PHASES[view.phase]}"
            )
        rank.over = cause
        self._note_raised(epoch, rank, view.pid)
        rank.quit = code == 0 or (code is None and rank.leaves_by in WELL)
        log.warning(
            "rank %d (pid %d) %s%s, in step %d, phase %s",
            rank.number,
            rank.pid,
            cause,
            f" after {rank.raised}" if rank.raised else "",
            view.step,
            slot.PHASES[view.phase],
        )
        self.report_end(rank)
        if rank.pid:
            of = marks(epoch, rank.local, rank.incarnation)
            self.children.begin_to_end(of, rank.pid, view.pid, rank.pid)
        self.monitor.died(rank)

    def _has_read(self, epoch: Epoch, rank: Rank, code: int | None, why: str) -> bool:
        """Read what a rank has left. False: records of gigabytes, each byte of which is verified,
        are read in a thread of their own, so that the agent answers meanwhile, the manager and the
        other ranks; `ended` is called again when they have been. `code`, `why`: its."""
        incarnation, process = rank.incarnation, rank.process
        if rank.left_by == incarnation or rank.reading == incarnation:
            return rank.reading != incarnation
        if not store.is_large(epoch.directory, rank.local):
            rank.left, rank.left_by = _left(epoch, rank), incarnation
            return True

        def known(left: Position | None) -> None:
            if rank.incarnation != incarnation or self.node.epoch is not epoch:
                return
            rank.left, rank.left_by, rank.reading = left, incarnation, -1
            # the zygote may have told its status meanwhile
            now = exit_code(rank.pidfd, process) if code is None else code
            self.ended(epoch, rank, now, certain=True, why=why)

        def read() -> None:
            left = None
            try:
                left = _left(epoch, rank)
            finally:
                self.node.call(lambda: known(left))

        rank.reading = incarnation
        threads.run("taskd-left", read)
        return False

    @staticmethod
    def _note_raised(epoch: Epoch, rank: Rank, pid: int) -> None:
        """Note the exception that ended the rank's process, or why it could leave none. `pid`:
        under a wrapper, of the process in the wrapper."""
        read = (raised.read(epoch.directory, rank.local, p) for p in (pid, rank.pid))
        found = next(filter(None, read), "")
        rank.raised = raised.line(found) or epoch.vanished
        rank.traceback = raised.cut(found) or rank.traceback

    def report_end(self, rank: Rank) -> None:
        """Report the end of a rank's process."""
        self.node.news.set()
        if rank.failed:
            self.node.report(
                from_agent.RankDied(
                    rank.number,
                    rank.incarnation,
                    str(rank.over),
                    rank.left,
                    rank.raised,
                    rank.pid,
                    rank.traceback,
                )
            )
        else:
            self.node.report(
                from_agent.RankEnded(
                    rank.number, rank.incarnation, rank.step, rank.left, rank.left_loop
                )
            )


def _left(epoch: Epoch, rank: Rank) -> Position | None:
    try:
        return store.left_behind(epoch.directory, rank.local, rank.number)
    except OSError:  # its directory, or the key in it, is gone
        return None
    except Exception as error:  # a death is reported whatever its records are
        raised.heed(error)
        log.exception("rank %d: its records cannot be read", rank.number)
        return None

"""How the ends of ranks are noticed, and what they mean: a fault, or the end of the rank's work."""

from __future__ import annotations

import contextlib
import logging
import signal
from typing import TYPE_CHECKING

from taskd.agent.processes import Forked, describe, exit_code, leaving, noted_code
from taskd.agent.ranks import Epoch, Rank
from taskd.agent.watchdog import TRAINING
from taskd.cython_api import slot
from taskd.messages import from_agent
from taskd.records import store

if TYPE_CHECKING:
    from taskd.agent.agent import Agent

log = logging.getLogger("taskd.agent")


class Deaths:
    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def watch(self, epoch: Epoch, rank: Rank, incarnation: int) -> None:
        """A thread of its own: told by the kernel ~50 us after the rank's main thread is gone,
        whatever its memory."""
        with contextlib.suppress(OSError, ValueError):
            epoch.page.wait_death(rank.local)
            self._agent.call(lambda: self.gone(epoch, rank, incarnation))

    def gone(self, epoch: Epoch, rank: Rank, incarnation: int) -> None:
        if (
            rank.incarnation != incarnation
            or rank.over is not None
            or self._agent.epoch is not epoch
        ):
            return
        view = epoch.page.read(rank.local)
        if not leaving(view.pid):
            return  # let go on purpose (exec): the pidfd will tell
        # an interpreter that ends by itself says so first; its exit code is worth waiting for
        if view.phase != slot.DONE:
            # the zygote may have said how it ended, and have reaped it
            self._agent.replacements.hear()
            code = exit_code(rank.pidfd, rank.process)
            # a wrapper's child is not our process
            self.ended(epoch, rank, noted_code(view.pid) if code is None else code, certain=True)

    def ended(self, epoch: Epoch, rank: Rank, code: int | None, certain: bool = False) -> None:
        """The rank's process is gone, or surely going (`certain`)."""
        if rank.over is not None:
            return
        if (
            code is None
            and isinstance(rank.process, Forked)
            and not certain
            and self._agent.replacements.tells(rank.process)
        ):
            return  # the zygote will say with what code
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
        if self._agent.standby.preparing:
            rank.over = describe(code, epoch.page.records(rank.local))
            self._agent.standby.died(rank)
            return
        if isinstance(rank.process, Forked) and not self._agent.replacements.tells(rank.process):
            # torch's launcher asks for it
            rank.process.end(-signal.SIGKILL if code is None else code)
        if code == 0 and (
            not epoch.protected or view.phase in (slot.DONE, slot.SETUP, slot.COMMITTED)
        ):
            rank.over, rank.step = "ended well", view.step
            with contextlib.suppress(OSError):
                rank.left = store.left_behind(epoch.directory, rank.local, rank.number)
            self.tell_end(rank)
            return
        cause = describe(code, epoch.page.records(rank.local))
        if code == 0:  # sys.exit() where nobody expects it: the others wait for this rank
            cause += (
                f" in the middle of step {view.step}"
                if view.phase in TRAINING
                else f" in phase {slot.PHASES[view.phase]}"
            )
        rank.over = cause
        with contextlib.suppress(OSError):
            rank.left = store.left_behind(epoch.directory, rank.local, rank.number)
        log.warning(
            "rank %d (pid %d) %s, in step %d, phase %s",
            rank.number,
            rank.pid,
            cause,
            view.step,
            slot.PHASES[view.phase],
        )
        self.tell_end(rank)
        self._agent.monitor.died(rank)

    def tell_end(self, rank: Rank) -> None:
        """Of a rank whose process is over."""
        if rank.failed:
            self._agent.tell(
                from_agent.RankDied(rank.number, rank.incarnation, str(rank.over), rank.left)
            )
        else:
            self._agent.tell(
                from_agent.RankEnded(rank.number, rank.incarnation, rank.step, rank.left)
            )

"""A signal asks the job to leave: reports it to each manager, until the job has ended."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time

from taskd.agent.member import Member
from taskd.agent.ranks.model import Epoch, Rank
from taskd.messages import from_agent

log = logging.getLogger("taskd.agent")


class Leaving:
    """Used by the agent's thread except where noted."""

    def __init__(self, member: Member, number: signal.Signals | None, grace: float) -> None:
        """`number`: the signal, None: there is none. `grace`: seconds until the machine is gone."""
        self._member, self.signal, self._grace = member, number, grace
        self.cause = ""  # "": not asked
        self.until = 0.0  # on the monotonic clock

    @property
    def possible(self) -> bool:
        """Whether there is a state to save. If the manager is gone just now, the next one gets the
        report. From any thread."""
        member = self._member
        epoch = member.epoch
        protected = epoch is not None and epoch.protected and not member.preparing
        return self.signal is not None and protected

    def asked(self, cause: str) -> None:
        """Report the first signal; those that follow change nothing."""
        epoch = self._member.epoch
        if self.cause or not self.possible or epoch is None:
            return
        self.cause, self.until = cause, time.monotonic() + self._grace
        log.warning("%s: the job saves its state and ends within %g s", cause, self._grace)
        self._pass_on(epoch)
        self.repeat()

    def _pass_on(self, epoch: Epoch) -> None:
        """Give the signal to ranks whose script handles it, unless they have got it."""
        for rank in epoch.ranks.values():
            view = epoch.page.read(rank.local)
            if rank.over is None and rank.pid and view.handles and not view.asked:
                with contextlib.suppress(OSError):
                    self._signal(epoch, rank, view.pid)

    def _signal(self, epoch: Epoch, rank: Rank, pid: int) -> None:
        """Signal the rank's process, which may be a child of a wrapper. Raises OSError."""
        process = os.pidfd_open(pid)
        try:
            # it lives now, so it has not been another one's number when that was opened
            if not epoch.page.wait_death(rank.local, 0):
                signal.pidfd_send_signal(process, self.signal or 0)
        finally:
            os.close(process)

    def by_ranks(self, epoch: Epoch) -> None:
        """See whether a rank has got the signal."""
        for rank in epoch.ranks.values():
            if not self.cause and rank.over is None and epoch.page.read(rank.local).asked:
                self.asked(f"{self.signal.name if self.signal else ''} to rank {rank.number}")

    def repeat(self) -> None:
        """Report it to the manager, which may be a new one."""
        left = max(self.until - time.monotonic(), 0.0)
        if self.cause and self._member.epoch is not None:
            self._member.report(from_agent.AskedToLeave(self._member.node, self.cause, left))

    def margin(self, epoch: Epoch) -> int:
        """How many steps later ranks are to pause: a script that handles the signal looks for it
        between two steps."""
        ranks = epoch.ranks.values()
        return int(bool(self.cause) and any(epoch.page.read(r.local).handles for r in ranks))

    @property
    def too_late(self) -> bool:
        """Whether the time is up, and the job has not ended. From any thread."""
        return bool(self.cause) and time.monotonic() >= self.until

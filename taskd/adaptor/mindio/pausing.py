"""Makes the training thread wait in a pause between two updates, and run tasks for its device: only
that thread has the device's context, and then nothing else uses the device."""

from __future__ import annotations

from collections import deque

from taskd.adaptor.mindio import handlers, tested
from taskd.adaptor.mindio.rank import Rank
from taskd.adaptor.mindio.updates import Stopped
from taskd.cython_api import slot
from taskd.messages import from_rank, to_rank
from taskd.worker.repair import device_tasks

Order = to_rank.Pause | to_rank.Continue | to_rank.SwitchNics | to_rank.StressTest


class Pausing:
    """The page shows whether there is a pause; orders, which arrive later, say when to read the
    page again and what to do meanwhile."""

    def __init__(self, rank: Rank) -> None:
        self._rank, self._agent = rank, rank.agent
        self._orders: deque[Order] = deque()  # under the rank's `changed`

    # -- the thread that receives orders -----------------------------------------------------------

    def ordered(self, order: Order) -> None:
        with self._rank.changed:
            self._orders.append(order)

    def forget(self) -> None:
        """A repair begins: drop earlier orders."""
        with self._rank.changed:
            self._orders.clear()

    # -- the training thread -----------------------------------------------------------------------

    def wait(self, step: int) -> None:
        """Wait while a pause before `step` is ordered. Raises Stopped."""
        rank = self._rank
        while slot.pauses(step) and not rank.interrupted:
            rank.handlers.call(handlers.SYNC)
            with rank.changed:
                # the page is as new as any of these, and the report answers them
                tasks = [o for o in self._orders if not isinstance(o, _ABOUT_THE_PAUSE)]
                self._orders = deque(tasks)
            slot.progress(step, slot.PAUSED)
            self._agent.report(from_rank.RankPaused, step)
            self._stay(step)
        if rank.interrupted:
            raise Stopped
        slot.progress(step, slot.COMPUTING)
        if slot.pauses(step):  # too late from now on
            self._agent.report(from_rank.RankPassed, step)

    def _stay(self, step: int) -> None:
        """Stay until the pause may be over, or has to be reported again: the boundary has moved, or
        another manager asks."""
        rank = self._rank
        while True:
            with rank.changed:
                rank.changed.wait_for(
                    lambda: rank.interrupted or self._orders or not slot.pauses(step)
                )
                if rank.interrupted or not self._orders:
                    return
                order = self._orders.popleft()
            if isinstance(order, _ABOUT_THE_PAUSE):
                return
            device_tasks.carry_out(self._agent, tested.device(), order)


_ABOUT_THE_PAUSE = (to_rank.Pause, to_rank.Continue)

"""What a device that runs late has still to do: the host must not take it for done."""

from __future__ import annotations

from taskd.cython_api import slot
from taskd.worker.repair.session import RepairSession
from taskd.worker.training.waiting import Waiting


class Queued:
    """`late`: this rank's device runs behind the host. `waiting`: how long this rank waits for the
    others."""

    def __init__(self, session: RepairSession) -> None:
        self._session = session
        self.late = session.device.runs_late
        self.waiting = Waiting(session.state.ddps, session.device)
        # called as an optimizer is about to update
        self.updates = self._updates if self.late else self.waiting.updates
        self._ended = 0  # number of collectives that are known to have ended

    def _updates(self) -> None:
        self.waiting.updates()
        stripes = self._session.stripes
        if stripes is not None and stripes.publisher is not None:
            stripes.publisher.updates()

    def whole(self) -> bool:
        """Wait until all that this thread has queued is done; return whether no interruption may
        have cut a collective of it. If one has, nothing may be queued behind it."""
        stripes = self._session.stripes
        compare = stripes.look() if stripes is not None else None
        self._session.device.wait_for_queue()
        if compare is not None:
            compare()
        self._ended = self._session.communicators.begun()
        return slot.interruption() <= self._session.built_at

    def settle(self) -> None:
        """The same before a commit, where an abort could cut what has been queued since: further
        collectives, or the update itself."""
        session = self._session
        if session.device.stops_updates or session.communicators.begun() != self._ended:
            self.whole()

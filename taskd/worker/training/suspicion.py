"""Faults that this rank has found and reported since the last repair: its attempt cannot be
committed, and an interruption will follow."""

from __future__ import annotations

from taskd.cython_api import damage
from taskd.devices import DeviceLost, Fault, FaultType
from taskd.messages import from_rank
from taskd.worker.repair.session import RepairSession

DAMAGED = 2  # a bit of damage.spoiled(): a memory page was lost


class Suspicion:
    """The rank's faults. `present`: there is one, and it is being or has been reported."""

    def __init__(self, session: RepairSession) -> None:
        self._session = session
        self.present = False
        self._fault: Fault | None = None  # the device's own report of it

    def settled(self) -> None:
        """Forget the faults: a repair has fixed them."""
        self.present, self._fault = False, None

    def doubt(self, step: int, text: str, kind: int = from_rank.OTHER) -> None:
        """Report that the results of `step` must not be used."""
        self.present = True
        self._session.agent.report(from_rank.RankFaulted, step, kind, text)

    def spoiled(self, step: int) -> bool:
        """Return whether this rank's results cannot be used: a connection broke in the middle of a
        message, or a memory page was lost."""
        spoiled = damage.spoiled()
        if spoiled and not self.present:
            self.present = True
            if not spoiled & DAMAGED:  # the agent reports a lost page
                broken = "a connection broke in the middle of a message"
                self._session.agent.report(from_rank.CollectiveFailed, step, broken)
        return bool(spoiled)

    def recognise(self, error: BaseException) -> Fault | None:
        """The fault of the device or its collective library that `error` describes, or None."""
        fault = self._session.device.recognise(error) if isinstance(error, Exception) else None
        if fault is not None and not fault.stopped:
            # even after an interruption: the repair must know what the device has lost
            self._fault = fault
        return fault

    def report(self, step: int, fault: Fault) -> None:
        """Report a failure of the device or its collective library; an interruption will follow."""
        if fault.stopped:  # by taskd's own order: the interruption is under way
            self.present = True
        elif fault.type is FaultType.NETWORK:
            self.present = True
            self._session.agent.report(from_rank.CollectiveFailed, step, fault.text)
        else:
            self.doubt(step, f"{fault.name}: {fault.text}", int(fault.type))

    def clean_device(self) -> tuple[bool, str]:
        """Prepare the device for the repair. Returns (whether state in its memory is lost, why this
        process cannot go on with it; "": it can)."""
        try:
            return self._session.device.clean(self._fault) == "state", ""
        except DeviceLost as error:
            return False, str(error)

"""What this rank has found wrong since the last repair, and told: its attempt cannot be committed,
and an interruption is on its way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskd.cython_api import damage
from taskd.devices import DeviceLost, Fault, FaultType
from taskd.messages import from_rank

if TYPE_CHECKING:
    from taskd.worker.session import RepairSession

DAMAGED = 2  # a bit of damage.spoiled(): a memory page was lost


class Suspicion:
    """`present`: something has failed here, which is being told or has been."""

    def __init__(self, session: RepairSession) -> None:
        self._session = session
        self.present = False
        self._fault: Fault | None = None  # what the device said about it

    def settled(self) -> None:
        """A repair has made good what was wrong."""
        self.present, self._fault = False, None

    def doubt(self, step: int, text: str, kind: int = from_rank.OTHER) -> None:
        """What was computed in `step` is not to be used."""
        self.present = True
        session = self._session
        session.channel.send(
            from_rank.RankFaulted(session.rank, session.incarnation, step, kind, text)
        )

    def spoiled(self, step: int) -> bool:
        """Whether what this rank has computed cannot be used: a connection broke in the middle of a
        message, or a memory page was lost."""
        spoiled = damage.spoiled()
        if spoiled and not self.present:
            self.present = True
            if not spoiled & DAMAGED:  # of a lost page the agent tells
                self._collective_failed(step, "a connection broke in the middle of a message")
        return bool(spoiled)

    def recognise(self, error: BaseException) -> Fault | None:
        """What `error` says about the device and its collective library, None where it is not
        theirs."""
        fault = self._session.device.recognise(error) if isinstance(error, Exception) else None
        if fault is not None and not fault.stopped:
            # also where an interruption has come meanwhile: what the device has lost must be known
            # then
            self._fault = fault
        return fault

    def tell(self, step: int, fault: Fault) -> None:
        """The device, or its collective library, has failed: say so, and wait for the interruption
        that will follow."""
        if fault.stopped:  # by our own order: the interruption is on its way
            self.present = True
        elif fault.type is FaultType.NETWORK:
            self.present = True
            self._collective_failed(step, fault.text)
        else:
            self.doubt(step, f"{fault.name}: {fault.text}", int(fault.type))

    def _collective_failed(self, step: int, text: str) -> None:
        session = self._session
        session.channel.send(
            from_rank.CollectiveFailed(session.rank, session.incarnation, step, text)
        )

    def clean_device(self) -> tuple[bool, str]:
        """Ready the device for the repair: (whether state in its memory is lost, why this process
        cannot go on with it, "" if it can)."""
        try:
            return self._session.device.clean(self._fault) == "state", ""
        except DeviceLost as error:
            return False, str(error)

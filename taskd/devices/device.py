"""The interface between the worker and a kind of device.

In a repair the worker calls, in this order: `abort`, from a thread of its own, the moment a pause
is asked for; then in the training thread, when that has left its work and `abort` has returned:
`clean`; `resume_communicators` where every rank is alive; `restart`; `leave_collectives` where
communicators are built anew. Each call is harmless where there is nothing to do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar, Literal

import torch

from taskd.devices import tables
from taskd.devices.faults import Fault, FaultType, Pattern, name_fault, registered

Lost = Literal["nothing", "temporary", "state"]


class DeviceLost(RuntimeError):
    """This process cannot go on with its device; another process has to take the rank over."""


class Device(ABC):
    """One accelerator (or the CPU) of this rank, and the collective library that belongs to it."""

    table: ClassVar[tuple[Pattern, ...]] = (*tables.GLOO, *tables.TORCH)
    """What this device's errors mean; the first row that matches counts."""

    needs_abort: ClassVar[bool] = False
    """Whether a blocked rank needs `abort` to get out. Where not, no thread is started for it."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def recognise(self, error: BaseException) -> Fault | None:
        """The fault that `error` or one of its causes stands for, or None: the script's own affair.
        Users' patterns come first."""
        return name_fault(error, registered(), self.table)

    def abort(self) -> None:  # noqa: B027  (doing nothing is right where nothing is queued)
        """Get the training thread out of whatever it waits for on the device. Called from another
        thread; raises nothing."""

    def clean(self, fault: Fault | None) -> Lost:
        """Called in the training thread when it has left its work. `fault`: what this rank's error
        was, None if it had none. A second call before `restart` answers as the first.

        Returns what the device's memory has lost: "nothing", "temporary" (the step's own tensors:
        repeating it is enough), or "state" (parameters or optimizer state: they must come from a
        replica). Raises DeviceLost.
        """
        if fault is not None and fault.type is FaultType.MEMORY and not fault.stopped:
            raise DeviceLost(
                f"{fault.name}: which memory is damaged cannot be told on {self.device.type}"
            )
        return "nothing"

    def resume_communicators(self) -> bool:
        """Make the present communicators usable again, in all ranks. False: they have to be built
        anew."""
        return False

    def restart(self) -> None:  # noqa: B027
        """Accept work again after `clean`. Raises DeviceLost."""

    def will_overwrite(self, tensors: Iterable[torch.Tensor]) -> None:  # noqa: B027
        """Every byte of `tensors` is about to be written after `clean` has returned "state": lift
        what guards damaged memory."""

    @abstractmethod
    def leave_collectives(self) -> None:
        """Called in a living rank before its communicators are replaced: whatever a cut of sockets
        does not end, ends here."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait for work that was queued on the device."""

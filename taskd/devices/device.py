"""The interface between the worker and a kind of device.

In a repair the worker calls, in this order: `abort`, from a separate thread, as soon as the rank is
interrupted; then, in the training thread, once it has left its work and `abort` has returned:
`clean`; `resume_communicators` if every rank is alive; `restart`; `leave_collectives` if
communicators are rebuilt. Each call is harmless if there is nothing to do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, Literal

import torch

from taskd.devices import tables
from taskd.devices.faults import Fault, FaultType, Pattern, name_fault, registered

Lost = Literal["nothing", "temporary", "state"]
Test = Literal["aic", "p2p"]  # those of to_rank.TESTS


class DeviceLost(RuntimeError):
    """This process cannot continue with its device; another process has to take over the rank."""


class Device(ABC):
    """One accelerator (or the CPU) of this rank, with its collective library."""

    table: ClassVar[tuple[Pattern, ...]] = (*tables.GLOO, *tables.TORCH)
    """The meaning of this device's errors; the first row that matches counts."""

    needs_abort: ClassVar[bool] = False
    """Whether a blocked rank needs `abort` to get out. If not, no thread is started for it."""

    runs_late: ClassVar[bool] = False
    """Whether the host runs ahead of it: what is called is queued, and a collective that `abort`
    ends leaves anything in its output, behind which the queue runs on. Then `wait_for_queue` is
    called before updates."""

    stops_updates: ClassVar[bool] = False
    """Whether `abort` also stops an update of the parameters that is queued or under way."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def recognise(self, error: BaseException) -> Fault | None:
        """The fault that `error` or one of its causes reports, or None for the script's own errors.
        Users' patterns come first."""
        return name_fault(error, registered(), self.table)

    def abort(self) -> None:  # correct if nothing is queued
        """Free the training thread from any wait on the device. Called from another thread; raises
        nothing."""

    def clean(self, fault: Fault | None) -> Lost:
        """Determine what the device's memory has lost. Called in the training thread once it has
        left its work. `fault`: this rank's fault, or None. A second call before `restart` returns
        the same.

        Returns "nothing", "temporary" (the step's own tensors: repeating it is enough), or "state"
        (parameters or optimizer state: they must come from a replica). Raises DeviceLost.
        """
        if fault is not None and fault.type is FaultType.MEMORY and not fault.stopped:
            raise DeviceLost(
                f"{fault.name}: {self.device.type} cannot tell which memory is damaged"
            )
        return "nothing"

    def resume_communicators(self) -> bool:
        """Make the current communicators usable again, in all ranks. False: they must be
        rebuilt."""
        return False

    def restart(self) -> None:
        """Accept work again after `clean`. Raises DeviceLost."""

    def will_overwrite(self, tensors: Iterable[torch.Tensor]) -> None:
        """Lift the guard on damaged memory: every byte of `tensors` is about to be written after
        `clean` returned "state"."""

    def switch_nics(self, ranks: Sequence[int], backup: Sequence[bool]) -> bool:
        """Move the links of `ranks` to their backup network card, or back to the main one where
        `backup` is False. Called in the training thread of every rank, while all are paused between
        two steps. False: it did not work. Raises NotImplementedError where there is no such
        thing."""
        raise NotImplementedError(f"{self.device.type} has no backup network cards")

    def stress_test(self, test: Test) -> int:
        """Test the device's cores (`aic`) or its links (`p2p`), in the training thread while all
        ranks are paused between two steps. Returns 0 well, 1 not carried out, 2 the device is
        faulty, 3 it took too long, 4 its voltage was not put back. Raises NotImplementedError where
        there is no such test."""
        raise NotImplementedError(f"{self.device.type} has no stress test")

    def mark(self, name: str) -> Callable[[], None] | None:
        """Begin a range of the device's own profiler; returns what ends it. None: it has none."""
        return None

    def wait_for_queue(self) -> None:
        """Wait until all that has been queued so far is done, in any stream. Called
        before each update of the parameters, in the training thread; releases the GIL."""
        self.synchronize()

    def register(self, memory: torch.Tensor) -> str:
        """Let the device copy into `memory`, of the host, without the driver's own buffers. Called
        from a thread where `runs_late`. Returns why it cannot, "" if it can."""
        return f"{self.device.type} registers no memory of the host"

    def unregister(self, memory: torch.Tensor) -> None:
        """End what `register` began. `memory` is still mapped."""

    @abstractmethod
    def leave_collectives(self) -> None:
        """End what cutting sockets does not end; called in a living rank before its communicators
        are replaced."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait for work queued on the device."""

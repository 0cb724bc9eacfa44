"""CUDA tensors and NCCL.

Aborting its NCCL communicators from another thread frees a rank blocked in a collective or in a
wait for the device: their kernels end, and later calls raise. After an error of the CUDA context
every call repeats it until the process is restarted (CUDA's driver_types.h), so `clean` gives up
such a process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed.distributed_c10d as c10d

from taskd.devices import nccl, tables
from taskd.devices.device import Device, DeviceLost, Lost
from taskd.devices.faults import Fault, first_line

CONTEXT_LOST = frozenset(row.name for row in tables.CUDA if row.type is not None)


class Cuda(Device):
    needs_abort = runs_late = True
    table = (*tables.CUDA, *tables.NCCL, *tables.GLOO, *tables.TORCH)

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        # an abort under way ends before the training thread continues
        self._aborting = threading.Lock()
        # since communicators were last left; torch does not intend aborting one twice
        self._aborted: list[Any] = []

    def abort(self) -> None:
        with self._aborting:
            self._abort_communicators()

    def clean(self, fault: Fault | None) -> Lost:
        with self._aborting:
            pass
        if fault is not None and fault.name in CONTEXT_LOST:
            raise DeviceLost(
                f"{fault.name} on {self.device}: its CUDA context is unusable from now on"
            )
        lost = super().clean(fault)  # a user's pattern can also name a memory fault
        try:
            torch.cuda.synchronize(self.device)
        except RuntimeError as error:
            raise DeviceLost(f"{self.device} repeats an error: {first_line(error)}") from error
        return lost

    def mark(self, name: str) -> Callable[[], None]:
        torch.cuda.nvtx.range_push(name)
        return torch.cuda.nvtx.range_pop

    def leave_collectives(self) -> None:
        # torch's destroy_process_group waits for NCCL's kernels; an aborted communicator has none
        self.abort()
        self._aborted.clear()

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)

    def wait_for_queue(self) -> None:
        # all streams: a collective that nobody has waited for yet is in none but NCCL's own
        if not torch.cuda.is_current_stream_capturing():  # then nothing is carried out
            self.synchronize()

    def register(self, memory: torch.Tensor) -> str:
        status = torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, 0)
        if int(status) == 0:
            return ""
        return f"cudaHostRegister of {memory.nbytes} bytes returns {status!s}"

    def unregister(self, memory: torch.Tensor) -> None:
        torch.cuda.cudart().cudaHostUnregister(memory.data_ptr())

    def _abort_communicators(self) -> None:
        """Abort NCCL communicators as torch's _abort_process_group does, but keep the groups
        registered: the training thread still uses them."""
        found = [nccl.backend_of(group) for group in list(c10d._world.pg_names)]
        backends = [b for b in found if b is not None and not any(b is a for a in self._aborted)]
        self._aborted += backends  # also those that do not end: never twice
        nccl.abort(backends)

"""Ascend NPUs, HCCL and torch_npu, which is imported when a call needs it.

torch_npu's functions are written out in full, so that tests/devices/test_torch_npu_signatures.py
can compare each call with torch_npu's sources. The order of the calls is that of the vendor's
callers: stop the device, check the memory, resume the communicators, restart the device. An NPU
survives a memory error: it reports what is damaged, and the rest stays.
"""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed.distributed_c10d as c10d

from taskd.devices import tables
from taskd.devices.device import Device, DeviceLost, Lost, Test
from taskd.devices.faults import Fault, FaultType

log = logging.getLogger("taskd.devices")

# Results of check_uce_in_memory. 0: no address is known; 1: not in torch_npu's pool, so the memory
# cannot be released.
DAMAGED: dict[int, Lost] = {2: "temporary", 3: "state"}


class Npu(Device):
    needs_abort = runs_late = stops_updates = True
    table = (*tables.NPU, *tables.GLOO, *tables.TORCH)

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        if device.index is None:
            import torch_npu

            self.index: int = torch_npu.npu.current_device()
        else:
            self.index = device.index
        # a stop under way ends before the training thread continues
        self._stopping = threading.Lock()
        self._stopped = False
        # by the memory fault checked since the device was stopped
        self._lost: Lost | None = None

    def abort(self) -> None:
        with self._stopping:
            try:
                self._stop()
            except Exception:
                log.exception(
                    "npu:%d could not be stopped; this rank will be replaced if it stays blocked",
                    self.index,
                )

    def _stop(self) -> None:
        """Stop the device: until restart(), all work on it raises FORCE STOP."""
        import torch_npu

        torch_npu.npu.set_device(self.index)  # a new thread starts on device 0
        result = torch_npu.npu.stop_device(self.index)
        if result not in (None, 0):  # older versions return nothing
            raise RuntimeError(f"stop_device({self.index}) returned {result}")
        self._stopped = True

    def clean(self, fault: Fault | None) -> Lost:
        import torch_npu

        with self._stopping:
            try:
                if not self._stopped:
                    self._stop()
            except RuntimeError as error:
                raise DeviceLost(f"npu:{self.index} could not be stopped: {error}") from error
        if fault is None or fault.type is not FaultType.MEMORY or fault.stopped:
            return self._lost or "nothing"
        # the check releases memory, so a second one would report the damage as outside the pool
        if self._lost is not None:
            return self._lost
        # memory held only by a cycle would count as in use, and its damage as damage to the state
        gc.collect()
        found = torch_npu.npu.check_uce_in_memory(self.index)
        if found not in DAMAGED:
            raise DeviceLost(
                f"{fault.name} on npu:{self.index}: the damaged memory cannot be released"
                f" (check_uce_in_memory: {found})"
            )
        self._lost = DAMAGED[found]
        return self._lost

    def resume_communicators(self) -> bool:
        import torch_npu

        try:
            # HcclCommResume, on every group
            torch_npu.distributed.reinit_process_group(group=None, rebuild_link=False)
        except RuntimeError as error:
            log.warning("HCCL communicators cannot be resumed and will be rebuilt: %s", error)
            return False
        return True

    def restart(self) -> None:
        if not self._stopped:
            return
        import torch_npu

        try:
            torch_npu.npu.restart_device(self.index)
        except RuntimeError as error:
            raise DeviceLost(f"npu:{self.index} could not be restarted: {error}") from error
        self._stopped, self._lost = False, None

    def will_overwrite(self, tensors: Iterable[torch.Tensor]) -> None:
        import torch_npu

        for tensor in tensors:
            torch_npu.npu._recovery.update_npu_tensor_to_safe(tensor)

    def mark(self, name: str) -> Callable[[], None]:
        import torch_npu

        number = torch_npu.npu.mstx.range_start(name)
        return lambda: torch_npu.npu.mstx.range_end(number)

    def leave_collectives(self) -> None:
        for group in list(c10d._world.pg_map):
            if any(d.type == "npu" for d in group._device_types):
                backend: Any = group._get_backend(self.device)
                try:
                    backend.abort_hccl_comm("taskd rebuilds the communicators")
                except RuntimeError:
                    log.warning(
                        "an HCCL communicator could not be aborted before it is replaced",
                        exc_info=True,
                    )

    def switch_nics(self, ranks: Sequence[int], backup: Sequence[bool]) -> bool:
        import torch_npu

        return bool(torch_npu.npu._comm_switch_nic(list(ranks), list(backup)))

    def stress_test(self, test: Test) -> int:
        import torch_npu

        # the tests of links are named after the vendor's links
        return int(torch_npu.npu.stress_detect("aic" if test == "aic" else "hccs"))

    def synchronize(self) -> None:
        import torch_npu

        torch_npu.npu.synchronize(self.index)


def time_of_device() -> int:
    """What the device's clock shows, in microseconds, once the work queued on the current stream is
    done."""
    import torch_npu

    event = torch_npu.npu.Event(enable_timing=True)
    event.record()
    event.synchronize()
    return int(event.recorded_time())

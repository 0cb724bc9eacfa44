"""CUDA tensors and NCCL. Recovery is run on gloo in this version; this adapter names errors and aborts communicators."""

from __future__ import annotations

import torch
import torch.distributed as dist

from taskd.devices.device import Device, causes, is_distributed_error

_NCCL_MARKS = ("NCCL error", "NCCL communicator was aborted", "ncclRemoteError", "ncclSystemError", "ncclInternalError")


class Cuda(Device):
    def communication_failure(self, error: BaseException) -> bool:
        return any(
            is_distributed_error(e) or (isinstance(e, RuntimeError) and any(mark in str(e) for mark in _NCCL_MARKS)) for e in causes(error)
        )

    def leave_collectives(self) -> None:
        dist.distributed_c10d._abort_process_group()

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)

"""The device that the checks run on: a GPU with NCCL, or with DEVICE=cpu the late device of
tests/late, on which every check runs to its end."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
CPU = os.environ.get("DEVICE", "cuda") == "cpu"


@dataclass(frozen=True)
class Place:
    """`kind`: of torch.device; `backend`: its collectives' alone; `mixed`: with gloo for the CPU;
    `gloo`: with gloo for the device too, where gloo knows it."""

    kind: str
    backend: str
    mixed: str
    gloo: str
    module: Any

    def seconds(self, milliseconds: float) -> None:
        """Keep the device busy for so long, from the present stream."""
        if CPU:
            from tests import late

            late.extension().set_delay(int(1000 * milliseconds / 40))  # a step has ~40 operations
        else:
            torch.cuda._sleep(int(milliseconds * 1.4e6))  # cycles


def alone_on_a_gpu() -> None:
    """Let several ranks of NCCL share a GPU: to NCCL each is on a host of its own. Before the first
    communicator."""
    rank = os.environ.get("RANK", "0")
    os.environ.update(
        NCCL_HOSTID=f"h{rank}",
        NCCL_NET="Socket",
        NCCL_SOCKET_IFNAME="lo",
        NCCL_IB_DISABLE="1",
        NCCL_MNNVL_ENABLE="0",
        NCCL_NVLS_ENABLE="0",
        NCCL_CUMEM_HOST_ENABLE="0",
        NCCL_MAX_CTAS="2",
        CUBLAS_WORKSPACE_CONFIG=":4096:8",
    )


def use() -> Place:
    """The place, ready for this process."""
    if CPU:
        from tests import late

        late.use()
        return Place("late", "late", "cpu:gloo,late:late", "late", torch.late)
    alone_on_a_gpu()
    torch.cuda.set_device(0)
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    return Place("cuda", "nccl", "cpu:gloo,cuda:nccl", "gloo", torch.cuda)

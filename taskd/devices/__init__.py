"""What depends on the device and its collective library: how a broken communicator looks, how a blocked rank gets out.

May import torch. One file per kind; `of(device)` picks. `cpu.py` is complete; the others say what they do not do yet.
"""

from __future__ import annotations

import torch

from taskd.devices.cpu import Cpu
from taskd.devices.cuda import Cuda
from taskd.devices.device import Device


def of(device: torch.device) -> Device:
    """The adapter for tensors on `device`. Raises NotImplementedError for a kind that this version does not know."""
    kinds: dict[str, type[Device]] = {"cpu": Cpu, "cuda": Cuda}
    if device.type not in kinds:
        raise NotImplementedError(f"device type {device.type!r}: taskd can repair jobs on {', '.join(sorted(kinds))}")
    return kinds[device.type](device)

"""What the driver and the settings of a GPU or an NPU allow: logged at the start of a job, and by
`taskd doctor` before one. Nothing here starts a device but `report`."""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

CUDA_SERVICE = Path("/tmp/nvidia-mps/control")  # where the MPS daemon listens by default
DRIVER = Path("/proc/driver/nvidia/version")
SIZE = 16 << 20  # bytes that `report` registers and pins
MPS = (
    "an MPS daemon serves this GPU: the death of one process can end the others, which taskd then"
    " replaces one after the other. Stop it (echo quit | nvidia-cuda-mps-control), or train on"
    " another GPU"
)
# device -> the variable that fixes the order of sums, and the values that do
ORDERED = {
    "cuda": ("CUBLAS_WORKSPACE_CONFIG", (":4096:8", ":16:8")),
    "npu": ("HCCL_DETERMINISTIC", ("true", "TRUE", "True", "1")),
}


def inexact(kind: str, environ: Mapping[str, str] = os.environ) -> list[str]:
    """The settings without which a step that is repeated on a device may differ from its first try
    by rounding, as it may under torchrun. Empty for the CPU."""
    if kind not in ORDERED:
        return []
    missing = []
    if not torch.are_deterministic_algorithms_enabled():
        missing.append("torch.use_deterministic_algorithms(True)")
    variable, values = ORDERED[kind]
    if environ.get(variable) not in values:
        missing.append(f"{variable}={values[0]}")
    if kind == "cuda" and torch.backends.cudnn.benchmark:
        missing.append("torch.backends.cudnn.benchmark = False")
    return missing


def hazards(kind: str, environ: Mapping[str, str] = os.environ) -> list[str]:
    """What makes the death of one process the concern of others, with the remedy."""
    serves = "CUDA_MPS_PIPE_DIRECTORY" in environ or CUDA_SERVICE.exists()
    return [MPS] if kind == "cuda" and serves else []


def report(kind: str = "") -> str:
    """What the devices of this machine allow, as JSON: `kind` ("" if torch sees none), `count`,
    `name`, `libraries`, `registers` and `pins` ("", or why not), `hazards`. Starts the device."""
    from taskd import devices

    found: Any = torch.accelerator.current_accelerator() if not kind else torch.device(kind)
    if found is None or (not kind and not torch.accelerator.is_available()):
        return json.dumps({"kind": ""})
    kind = found.type
    module: Any = torch.get_device_module(kind)
    name = getattr(module, "get_device_name", lambda: kind)()
    answer = {
        "kind": kind,
        "count": module.device_count(),
        "name": name,
        "libraries": _libraries(kind),
        "registers": _registers(devices.of(torch.device(kind, 0))),
        "pins": _pins(),
        "hazards": hazards(kind),
    }
    return json.dumps(answer)


def _libraries(kind: str) -> list[str]:
    if kind != "cuda":
        return []
    found = [f"CUDA {torch.version.cuda}"]
    if torch.distributed.is_nccl_available():
        found.append("NCCL " + ".".join(map(str, torch.cuda.nccl.version())))
    if DRIVER.exists():
        words = DRIVER.read_text().split()
        found += [f"driver {word}" for word in words if word[:1].isdigit() and "." in word][:1]
    return found


def _registers(device: Any) -> str:
    """Whether shared memory can be registered, as the stripes are."""
    memory = torch.frombuffer(mmap.mmap(-1, SIZE), dtype=torch.uint8)
    try:
        why: str = device.register(memory)
    except RuntimeError as error:
        return str(error).splitlines()[0]
    if not why:
        device.unregister(memory)
    return why


def _pins() -> str:
    try:
        torch.empty(SIZE, dtype=torch.uint8, pin_memory=True)
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return ""

"""Differences between the frameworks that use the interface."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from taskd.cython_api import sockets

_version = ""  # MindSpeed or MindSpeed-LLM, as the framework says


def set_version(name: str) -> None:
    """Raises ValueError."""
    global _version
    if name not in ("MindSpeed", "MindSpeed-LLM"):
        raise ValueError(
            f"set_mindio_export_version({name!r}): known: 'MindSpeed' and 'MindSpeed-LLM'"
        )
    _version = name


def version() -> str:
    return _version


def stops_before_dump(environ: Mapping[str, str]) -> bool:
    """Whether ranks are stopped and cleaned before they save their last checkpoint."""
    given = environ.get("TTP_STOP_CLEAN_BEFORE_DUMP")
    return given == "1" if given is not None else bool(_version)


def resumes_links() -> bool:
    """Whether a clean handler can make the links of the current groups work again, as with HCCL. If
    not (torch with gloo or NCCL), a retry also makes new groups."""
    torch = sys.modules.get("torch")
    npu = getattr(torch, "npu", None)
    return torch is None or (npu is not None and bool(npu.is_available()))


def loads_checkpoints() -> bool:
    """Whether its repair handler can load a checkpoint: MindSpore's cannot."""
    return "mindspore" not in sys.modules


def settles_late() -> bool:
    """Whether a flag stays set for a moment after the framework has reported the end of an update,
    in which its handlers refuse: MindSpore's TrainFaultTolerance."""
    return "mindspore" in sys.modules


def choose_device() -> None:
    """Handlers run in a thread of their own, which has to choose the device again."""
    if (index := device()) is not None:
        sys.modules["torch"].npu.set_device(index)


def device() -> int | None:
    """The index of this process's accelerator; None without one."""
    torch = sys.modules.get("torch")
    npu = getattr(torch, "npu", None)
    return int(npu.current_device()) if npu is not None and npu.is_available() else None


def stream() -> Any:
    """A stream of the accelerator, None without one."""
    npu = getattr(sys.modules.get("torch"), "npu", None)
    if npu is None or not npu.is_available():
        return None
    return getattr(npu, "SyncLaunchStream", npu.Stream)()


def free_memory() -> None:
    """Release the memory of a failed step, on an accelerator."""
    torch = sys.modules.get("torch")
    for name in ("npu", "cuda"):
        device = getattr(torch, name, None)
        if device is not None and device.is_available():
            import gc

            gc.collect()
            device.empty_cache()


def may_be_of_a_peer(error: BaseException | None) -> bool:
    """Whether the end of another rank may be the cause of `error`, whose text nobody has explained
    to the interface; None: it is not known, it may be. A script's own defect is not kept waiting.
    On an accelerator any RuntimeError may be, since a library's next release has other texts: all
    ranks would otherwise end with the first."""
    if error is None or "torch" not in sys.modules or sockets.torn():
        return True
    import torch

    from taskd import devices
    from taskd.devices.faults import causes

    chain = causes(error)
    if any(isinstance(cause, (OSError, EOFError)) for cause in chain):
        return True
    if not any(isinstance(cause, RuntimeError) for cause in chain):
        return False
    accelerated = device() is not None or torch.cuda.is_available()
    return accelerated or devices.of(torch.device("cpu")).recognise(error) is not None


def sets_up_by_itself() -> None:
    """The processor starts: from here on the framework's set-up is its own."""
    if "torch" in sys.modules:
        from taskd.worker.set_up import functions as set_up

        set_up.left_to_framework()


def before_rebuild(generation: int, store: tuple[str, int]) -> None:
    """Groups are about to be made again, for `generation`. torch names groups by counting them, and
    a new process has another count than the rest. `store`: where ranks meet; the node of
    MASTER_ADDR may be lost, so torch's env:// is redirected there."""
    if "torch" not in sys.modules:
        return
    host, port = store
    if host and port:
        os.environ.update(
            MASTER_ADDR=host, MASTER_PORT=str(port), TORCHELASTIC_USE_AGENT_STORE="True"
        )
    from taskd.worker.communication import group_names
    from taskd.worker.set_up import functions as set_up

    set_up.real()
    group_names.number_names(generation)

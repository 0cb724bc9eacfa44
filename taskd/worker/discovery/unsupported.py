"""Detects parallel training whose state cannot be restored, by private names of torch;
tests/worker/test_parallel.py compares these with the installed torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from taskd.worker.communication.pipelines import Pipelines
from taskd.worker.state import fsdp2

# the hook by which DDP(device_mesh=...) takes DTensors for ordinary tensors
LOCALIZED = "_localize_dtensor"

# of a module or an optimizer that a Join has been made of; never reset
JOIN = "_join_config"


def joins(ddps: Iterable[DistributedDataParallel], optimizers: Iterable[Any]) -> str:
    """Why a loop inside `with ddp.join():` cannot be repaired, "" if there is none."""
    for each in (*ddps, *optimizers):
        if getattr(getattr(each, JOIN, None), "enable", False):
            return (
                f"the loop is inside {type(each).__name__}.join(), where a rank whose batches have"
                " ended answers the collectives of the others and cannot repeat a step: leave"
                " join() out where all ranks have as many batches"
            )
    return ""


def reason(modules: Iterable[torch.nn.Module]) -> str | None:
    """Why modules or schedules of this process cannot be restored, or None."""
    modules = list(modules)
    for root in modules:
        for name, module in root.named_modules():
            if type(module).__name__ == "FullyShardedDataParallel":
                return f"{name or 'the model'} is an FSDP1 module: use fully_shard (FSDP2)"
            if any(
                getattr(hook, "__name__", "") == LOCALIZED
                for hook in module._forward_hooks.values()
            ):
                return (
                    f"{name or 'the model'} is tensor parallel inside DDP, whose first forward"
                    " takes the parameters out of their modules: use fully_shard (FSDP2) instead of"
                    " DDP"
                )
    schedules = Pipelines()
    if missing := [*fsdp2.lacking(modules), *schedules.lacking()]:
        return f"torch {torch.__version__} lacks {', '.join(missing)}"
    if schedules.began():
        return (
            f"a pipeline has made a step already, and torch {torch.__version__} does not show"
            " which shapes its stages were given: call taskd.protect() before the first step"
        )
    return None

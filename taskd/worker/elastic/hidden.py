"""Finds DistributedDataParallel modules that average gradients in each share, where taskd cannot
keep them from it: those that protect() was not given, and those whose forward is compiled.

A compiled forward does not see hooks that are registered later. Private names of torch for this are
in this file.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from taskd.worker.state.training_state import TrainingState

COMPILED, INSIDE = "OptimizedModule", "_orig_mod"  # what torch.compile makes of a module
COMPILES = "_compiled_call_impl"  # of a module whose compile() was called


def reasons(state: TrainingState) -> Iterator[str]:
    """Looks at all objects of the process: some 100 ms."""
    protected = {id(m) for root in state.modules.values() for m in root.modules()}
    given = {id(ddp) for ddp in state.ddps}
    found = [v for v in gc.get_objects() if issubclass(type(v), torch.nn.Module)]
    compiled = {id(_inside(m)) for m in found if type(m).__name__ == COMPILED}
    for ddp in found:
        if not issubclass(type(ddp), DistributedDataParallel):
            continue
        if id(ddp) not in given and id(ddp.module) not in protected:
            continue
        name = type(ddp.module).__name__
        if id(ddp) in compiled or getattr(ddp, COMPILES, None) is not None:
            yield (
                f"DistributedDataParallel({name}) is compiled, and averages in each share then:"
                " compile the module inside it, DistributedDataParallel(torch.compile(module))"
            )
        elif id(ddp) not in given:
            yield (
                f"protect() was given the module inside DistributedDataParallel({name}): give it"
                " the DistributedDataParallel"
            )


def _inside(module: Any) -> Any:
    return module._modules.get(INSIDE)

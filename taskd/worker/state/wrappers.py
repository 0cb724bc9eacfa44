"""Unwraps libraries' optimizers and schedulers: the object inside has the state.

Wrappers of Accelerate and Fabric forward everything to the torch object that they hold, and call
its `step()`. Others (Lookahead, SAM) are optimizers themselves, with a state of their own: these
are protected beside what they hold. What wraps an optimizer and is none is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from taskd.worker.state import deepspeed, zero

# module and name of a wrapper -> the attribute with what it wraps
KNOWN = {
    ("accelerate.optimizer", "AcceleratedOptimizer"): "optimizer",
    ("accelerate.scheduler", "AcceleratedScheduler"): "scheduler",
    ("lightning.fabric.wrappers", "_FabricModule"): "_forward_module",
    ("lightning.fabric.wrappers", "_FabricOptimizer"): "_optimizer",
    ("lightning_fabric.wrappers", "_FabricModule"): "_forward_module",
    ("lightning_fabric.wrappers", "_FabricOptimizer"): "_optimizer",
}


def unwrap(value: Any) -> Any:
    """The torch object that `value` wraps, or `value`. Raises TypeError for an unknown wrapper."""
    for kind in type(value).__mro__:
        if (inside := KNOWN.get((kind.__module__, kind.__name__))) is not None:
            return unwrap(getattr(value, inside))
    known = (torch.optim.lr_scheduler.LRScheduler, torch.nn.Module, list, tuple)
    if isinstance(value, known) or deepspeed.is_zero(value):
        return value
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, torch.optim.Optimizer):
        around = bool(held(value)) and isinstance(getattr(value, "state", None), Mapping)
        if not (is_built(value) or around):
            raise TypeError(f"{name} is not built like a torch optimizer")
        return value
    if hasattr(value, "step") and hasattr(value, "param_groups") and (inner := held(value)):
        raise TypeError(
            f"{name} wraps an optimizer (its attribute {next(iter(inner))}) and is none itself, so"
            " that its own state cannot be restored"
        )
    return value


def is_built(optimizer: torch.optim.Optimizer) -> bool:
    """Whether torch's constructor has been called: it has hooks."""
    return "_optimizer_step_pre_hooks" in vars(optimizer)


def held(value: Any) -> dict[str, torch.optim.Optimizer]:
    """The optimizers in attributes of `value`, and in lists and dicts there, by their places."""
    found: dict[str, torch.optim.Optimizer] = {}
    if zero.is_split(value):
        return found
    for name, inner in getattr(value, "__dict__", {}).items():
        places: dict[str, Any] = {name: inner}
        if isinstance(inner, (list, tuple)):
            places = {f"{name}[{i}]": item for i, item in enumerate(inner)}
        elif isinstance(inner, dict):
            places = {f"{name}[{key!r}]": item for key, item in inner.items()}
        found |= {at: o for at, o in places.items() if isinstance(o, torch.optim.Optimizer)}
    return found

"""Unwraps libraries' optimizers and schedulers: the object inside has the state.

Wrappers of Accelerate and Fabric forward everything to the torch object that they hold, and call
its `step()`. Others may have their own state, or update parameters without the inner optimizer's
hooks: these are refused by name.
"""

from __future__ import annotations

from typing import Any

import torch

from taskd.worker.state import zero

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
    if isinstance(value, (torch.optim.lr_scheduler.LRScheduler, torch.nn.Module, list, tuple)):
        return value
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, torch.optim.Optimizer):
        if "_optimizer_step_pre_hooks" not in vars(value):
            raise TypeError(
                f"{name} is not built like a torch optimizer: give the optimizer inside it"
            )
        for attribute, inner in () if zero.is_split(value) else vars(value).items():
            if isinstance(inner, torch.optim.Optimizer):
                raise TypeError(
                    f"{name} wraps an optimizer (its attribute {attribute}) and may update"
                    " parameters on its own: give the inner one if that has the state, or train"
                    " without the wrapper"
                )
        return value
    held = [
        a
        for a, inner in getattr(value, "__dict__", {}).items()
        if isinstance(inner, torch.optim.Optimizer)
    ]
    if held and hasattr(value, "step") and hasattr(value, "param_groups"):
        raise TypeError(f"{name} wraps an optimizer (its attribute {held[0]}): give that one")
    return value

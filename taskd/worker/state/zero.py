"""ZeroRedundancyOptimizer: the optimizer of this rank's share of the parameters, inside it.

Its state is this rank's own. The groups of the outer one are what the script and its schedulers
see, and are copied to the inner one at each step; both are recorded.
"""

from __future__ import annotations

from typing import Any

import torch

KIND = ("torch.distributed.optim.zero_redundancy_optimizer", "ZeroRedundancyOptimizer")
NEEDED = ("optim", "_overlap_with_ddp")


def is_split(value: Any) -> bool:
    return any((k.__module__, k.__qualname__) == KIND for k in type(value).__mro__)


def unsupported(value: Any) -> str | None:
    """Why such an optimizer cannot be recorded, or None."""
    if getattr(value, NEEDED[1], False):
        return (
            "ZeroRedundancyOptimizer(overlap_with_ddp=True) updates parameters within the backward,"
            " where a failed step cannot be undone: leave it out"
        )
    if missing := [name for name in NEEDED if not hasattr(value, name)]:
        names = ", ".join(f"ZeroRedundancyOptimizer.{name}" for name in missing)
        return f"torch {torch.__version__} lacks {names}"
    return None


def share(value: Any) -> torch.optim.Optimizer:
    """The optimizer of this rank's parameters."""
    found: torch.optim.Optimizer = value.optim
    return found

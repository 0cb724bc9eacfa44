"""Sharded tensors (DTensor): this rank's part, and a sharded tensor made of one.

The memory of a DTensor is that of its local part, while its version counter is its own.
"""

from __future__ import annotations

from typing import Any

import torch

LOCAL = "_local_tensor"


def is_sharded(tensor: Any) -> bool:
    return hasattr(tensor, LOCAL)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a sharded tensor; an ordinary tensor itself."""
    return getattr(tensor, LOCAL, tensor)


def like(pattern: Any, part: torch.Tensor) -> torch.Tensor:
    """A sharded tensor laid out like `pattern`, of which this rank's part is `part`; `part` itself
    where `pattern` is an ordinary tensor. Raises ValueError where the parts' shapes differ."""
    if not is_sharded(pattern):
        return part
    if part.shape != local(pattern).shape:
        raise ValueError(
            f"a part of shape {tuple(part.shape)} does not fit a tensor whose part here has shape"
            f" {tuple(local(pattern).shape)}"
        )
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        part,
        pattern.device_mesh,
        pattern.placements,
        run_check=False,
        shape=pattern.shape,
        stride=pattern.stride(),
    )


def place(tensor: Any) -> tuple[tuple[int, ...] | None, tuple[int, ...]]:
    """Where in the whole tensor this rank's part begins, None if it is not one block of it; and the
    ranks that share the tensor. Of an ordinary tensor: at its beginning, and ()."""
    if not is_sharded(tensor):
        return (0,) * tensor.dim(), ()
    mesh, placements = tensor.device_mesh, tensor.placements
    ranks = tuple(mesh.mesh.flatten().tolist())
    try:
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
    except ImportError:  # another torch: a repair needs no place, and a dump refuses the tensor
        return None, ranks
    if any(p.is_partial() for p in placements):
        return None, ranks
    shape, offsets = compute_local_shape_and_global_offset(tensor.shape, mesh, placements)
    return (tuple(offsets) if tuple(shape) == tuple(local(tensor).shape) else None), ranks


def differently_placed(gradient: Any, parameter: Any) -> bool:
    """Whether a gradient is not laid out like its parameter, so that `like` could not make it."""
    return is_sharded(gradient) != is_sharded(parameter) or (
        is_sharded(gradient)
        and (gradient.placements, gradient.device_mesh)
        != (parameter.placements, parameter.device_mesh)
    )

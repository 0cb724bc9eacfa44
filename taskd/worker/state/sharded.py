"""Sharded tensors (DTensor): this rank's part, and a sharded tensor made of one.

The memory of a DTensor is that of its local part, while its version counter is its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

LOCAL = "_local_tensor"


def is_sharded(tensor: Any) -> bool:
    return hasattr(tensor, LOCAL)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a sharded tensor; an ordinary tensor itself."""
    return getattr(tensor, LOCAL, tensor)


def like(pattern: Any, part: torch.Tensor, laid_out: str = "") -> torch.Tensor:
    """A sharded tensor with this rank's part `part`, laid out like `pattern`, or by `laid_out` (see
    `otherwise`); `part` itself if `pattern` is an ordinary tensor. Raises ValueError where the part
    does not fit."""
    if not is_sharded(pattern):
        return part
    if part.shape != local(pattern).shape and not laid_out:
        raise ValueError(
            f"a part of shape {tuple(part.shape)} does not fit a tensor whose part here has shape"
            f" {tuple(local(pattern).shape)}"
        )
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        part,
        pattern.device_mesh,
        _placements(laid_out) if laid_out else pattern.placements,
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


def otherwise(tensor: Any, pattern: Any) -> str:
    """How `tensor` is laid out, "" if like `pattern`. Where a sum is still to come, as in the
    gradients of sequence parallelism: "Psum". Raises ValueError for what `like` cannot make."""
    if is_sharded(tensor) != is_sharded(pattern):
        raise ValueError("one is sharded, the other is not")
    if not is_sharded(tensor):
        return ""
    if tensor.device_mesh != pattern.device_mesh or tensor.shape != pattern.shape:
        raise ValueError("they are on different meshes, or of different shapes")
    if tensor.placements == pattern.placements:
        return ""
    from torch.distributed.tensor import Partial, Replicate, Shard

    found = []
    for placement in tensor.placements:
        kind = type(placement)
        if kind is Shard:
            found.append(f"S{placement.dim}")
        elif kind is Replicate:
            found.append("R")
        elif kind is Partial:
            found.append(f"P{placement.reduce_op}")
        else:
            raise ValueError(f"its placement {placement} is not known")
    return " ".join(found)


def _placements(text: str) -> list[Any]:
    from torch.distributed.tensor import Partial, Replicate, Shard

    made: dict[str, Callable[[str], Any]] = {
        "S": lambda rest: Shard(int(rest)),
        "R": lambda rest: Replicate(),
        "P": lambda rest: Partial(rest),
    }
    return [made[word[0]](word[1:]) for word in text.split()]

"""The names of torch's process groups, which must be the same on all ranks."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
import torch.distributed.distributed_c10d as c10d

_number = 0  # in use
_made: dict[
    tuple[int, ...], int
] = {}  # how many groups were named by it, by their ranks; () by none


def number_names(number: int) -> None:
    """Name groups made from now on by `number` and a count that starts over: of those with the same
    ranks if only these make the group, else of all. torch counts the groups that each process has
    made, or holds: a new process, or one that failed to make some, has others than the rest, and
    would wait for its peers under another name. Raises RuntimeError."""
    global _number
    _number = number
    _made.clear()
    original = getattr(c10d, "_process_group_name", None)
    if original is None:
        raise RuntimeError(f"torch {torch.__version__} lacks distributed_c10d._process_group_name")
    if original is not _named:
        c10d._process_group_name = _named


def _named(ranks: Any, use_hashed_name: Any) -> Any:
    key = tuple(ranks) if use_hashed_name else ()
    _made[key] = _made.get(key, 0) + 1
    name = f"{_number}_{_made[key]}"
    if not use_hashed_name:
        return name
    return hashlib.sha256(f"{'_'.join(map(str, ranks))} {name}".encode()).hexdigest()

"""The names of torch's process groups, which must be the same on all ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed.distributed_c10d as c10d

_numbered: list[int] = []  # the number in use, and how many groups were named by it


def number_names(number: int) -> None:
    """Name groups made from now on by `number` and a count that starts over. torch counts groups in
    each process, and the count of a new process, or of one that failed to make some, differs from
    the rest. Raises RuntimeError."""
    first = not _numbered
    _numbered[:] = number, 0
    original = getattr(c10d, "_process_group_name", None)
    if original is None:
        raise RuntimeError(f"torch {torch.__version__} lacks distributed_c10d._process_group_name")
    if not first:
        return

    def named(ranks: Any, use_hashed_name: Any) -> Any:
        name = original(ranks, use_hashed_name)
        if use_hashed_name:  # a name by its ranks
            return f"{name}_{_numbered[0]}"
        _numbered[1] += 1
        return f"{_numbered[0]}_{_numbered[1]}"

    c10d._process_group_name = named

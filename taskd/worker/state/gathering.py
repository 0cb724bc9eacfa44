"""taskd's own gathers over the default group, also while ranks are away."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from taskd.worker.communication import groups, transfer


def gather(values: torch.Tensor, present: Sequence[int]) -> dict[int, torch.Tensor]:
    """The `values` of each rank of `present`, which are all that are not away, by rank, where
    `values` is. A collective, on a device that the default group serves."""
    there = groups.device()
    if there.type != values.device.type:
        theirs = gather(values.to(there), present)
        found = {rank: row.to(values.device) for rank, row in theirs.items()}
        transfer.whole()
        return found
    size = dist.get_world_size()
    if len(present) == size:
        rows = [torch.empty_like(values) for _ in present]
        dist.all_gather(rows, values)
        return dict(zip(present, rows, strict=True))
    # with fewer ranks only reductions work (shrunk.py); what is summed here are whole numbers
    table = values.new_zeros((len(present), *values.shape))
    table[present.index(dist.get_rank())] = values
    dist.all_reduce(table)
    return dict(zip(present, table, strict=True))

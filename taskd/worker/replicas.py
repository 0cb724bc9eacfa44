"""Checks whether replicated state is still equal on all ranks.

What differs when the first communicators exist is kept per rank. State may begin to differ later:
under LocalSGD, in a part of the model whose gradients are not reduced, in optimizer state that the
first update makes. So the ranks compare again after a few early updates, and each record has a mark
of the replicated state that is checked after a restore: no rank trains on a replica's state that
differs from its own.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from taskd.cython_api import attempt, memory

BYTES = 64  # at each end of a tensor: an update changes nearly every element
ROWS = 16  # rows read at one step, others at the next: ~2 us


def is_due(step: int) -> bool:
    """Whether ranks compare at the end of this step: 0, 1, 3, 7, 15… Optimizer state exists after
    the first update; LocalSGD may begin at any step."""
    return step & (step + 1) == 0


def differing(rows: list[torch.Tensor], world_size: int, layout: int) -> list[int]:
    """Indices of the rows that differ between ranks, the same list on every rank; all rows of each
    rank where the ranks do not have the same ones, by their `layout` (a checksum of their names).
    Collectives."""
    if world_size == 1:
        return []
    have = torch.tensor([len(rows), layout], dtype=torch.int64)
    if any(not torch.equal(have, other) for other in _gathered(have, world_size)):
        return list(range(len(rows)))
    hosted = [row.cpu() for row in rows]
    # int64 cannot hold an unsigned 64-bit checksum
    sums = torch.tensor(
        [memory.checksum(t.data_ptr(), t.numel()) - (1 << 63) for t in hosted], dtype=torch.int64
    )
    if not len(sums):
        return []
    theirs = torch.stack(_gathered(sums, world_size))
    found: list[int] = (theirs != sums).any(dim=0).nonzero().flatten().tolist()
    return found


def most(value: int, world_size: int) -> int:
    """The highest `value` of all ranks. A collective."""
    if world_size == 1:
        return value
    return max(int(other) for other in _gathered(torch.tensor([value]), world_size))


def _gathered(values: torch.Tensor, world_size: int) -> list[torch.Tensor]:
    gathered = [torch.empty_like(values) for _ in range(world_size)]
    dist.all_gather(gathered, values)
    return gathered


class Differs(RuntimeError):
    """The restored state is not the state that the rank had."""


def mark(rows: attempt.Rows, step: int) -> int:
    """A checksum of both ends of some rows. Rows on other devices are skipped: reading them would
    wait for the device."""
    return rows.mark(step * ROWS, ROWS, BYTES)


def check(rows: attempt.Rows, recorded: int, step: int) -> None:
    """Raise Differs if the mark of `rows`, just restored, is not `recorded`."""
    if mark(rows, step) != recorded:
        raise Differs(
            f"the state restored for step {step} is not what this rank had: parameters or optimizer"
            " state differ between ranks (gradients that are not all-reduced, LocalSGD), so no"
            " other rank has this rank's"
        )

"""Whether replicated state is still the same on all ranks.

What differs when the first communicators stand is kept per rank. It may begin to differ later:
under LocalSGD, in a part of the model whose gradients are not reduced, in an optimizer's state that
its first update makes. So the ranks compare once more after a few early updates, and each record
has a mark of the replicated state, which is looked at after a restore: a replica's state that is
not what this rank had is never trained on.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from taskd.cython_api import attempt, memory

BYTES = 64  # at each end of a tensor: what an update changes, it changes in nearly every element
ROWS = 16  # looked at for one step, others for the next: ~2 us


def is_due(step: int) -> bool:
    """Whether ranks compare when they end this step: 0, 1, 3, 7, 15… An optimizer's state is there
    after its first update, and LocalSGD's averages may begin at any."""
    return step & (step + 1) == 0


def differing(rows: list[torch.Tensor], world_size: int) -> list[int]:
    """Indices of the rows that are not the same on all ranks; on every rank the same list. A
    collective."""
    hosted = [row.cpu() for row in rows]
    # int64 holds no 64-bit checksum
    sums = torch.tensor(
        [memory.checksum(t.data_ptr(), t.numel()) - (1 << 63) for t in hosted], dtype=torch.int64
    )
    if not len(sums) or world_size == 1:
        return []
    everybody = [torch.empty_like(sums) for _ in range(world_size)]
    dist.all_gather(everybody, sums)
    found: list[int] = (torch.stack(everybody) != sums).any(dim=0).nonzero().flatten().tolist()
    return found


class Differs(RuntimeError):
    """What a rank has been restored to is not the state that it had."""


def mark(rows: attempt.Rows, step: int) -> int:
    """A checksum of both ends of some rows. Those of other devices are not looked at: that would
    wait for the device."""
    return rows.mark(step * ROWS, ROWS, BYTES)


def check(rows: attempt.Rows, recorded: int, step: int) -> None:
    """Raises Differs where `rows`, just restored, are not those of which `recorded` is the mark."""
    if mark(rows, step) != recorded:
        raise Differs(
            f"the state restored for step {step} is not what this rank had: parameters or optimizer"
            " state differ between the ranks (gradients that are not all-reduced, LocalSGD), so"
            " that no other rank has this one's"
        )

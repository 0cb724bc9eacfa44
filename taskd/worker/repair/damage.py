"""Decides what a lost memory page means for this rank.

libtaskd replaces a failed page that lies wholly in tensor memory by a clean one and records it:
execution continues with zeros, and the attempt will not commit. This module decides what those
zeros hit. Training state is restored from a replica. Gradients, activations and the collective
library's buffers are made again when the step is repeated. Any other tensor from before the attempt
(a data set, a table of the script's own) is lost: then the process cannot continue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from taskd.worker.state import sharded
from taskd.worker.state.stripes import Stripes
from taskd.worker.state.training_state import TrainingState

SCRATCH = (1 << 64) - 1  # `born` of memory that every repair makes again: the reducers' buckets


@dataclass(frozen=True)
class Survey:
    """What was hit. `state`: parameters or optimizer state; `stripes`: (begin, end) addresses in
    this rank's stripes; `unfit`: why the process cannot go on, "" if it can."""

    state: bool = False
    stripes: tuple[tuple[int, int], ...] = ()
    unfit: str = ""


def survey(
    damages: Sequence[dict[str, Any]],
    accepted: int,
    state: TrainingState,
    stripes: Stripes | None,
    attempt: int | None,
) -> Survey:
    """Find what the pages in `damages` hit. `damages`: the newest, oldest first; those up to number
    `accepted` were repaired in earlier incidents. `attempt`: the current attempt's stamp, None
    between attempts."""
    hit_state = False
    hit_stripes: list[tuple[int, int]] = []
    unfit = ""
    if damages and damages[0]["number"] > accepted + 1:
        unfit = (
            f"{damages[-1]['number'] - accepted} memory pages were lost, more than the list of lost"
            " pages holds"
        )
    for damage in damages:
        if damage["number"] <= accepted:
            continue
        begin, end = damage["addr"], damage["addr"] + damage["bytes"]
        in_state = _overlap([*state.replicated, *state.shards], begin, end)
        in_own = _overlap(state.buffers, begin, end)
        in_stripes = stripes is not None and stripes.has(begin, end)
        hit_state |= in_state
        if in_stripes:
            hit_stripes.append((begin, end))
        if (
            in_state
            or in_own
            or in_stripes
            or damage["born"] == SCRATCH
            or (attempt is not None and damage["born"] == attempt)
        ):
            continue
        gradients = [sharded.local(p.grad) for p in state.parameters() if p.grad is not None]
        if not any(
            g.data_ptr() < end and begin < g.data_ptr() + g.untyped_storage().nbytes()
            for g in gradients
        ):
            unfit = (
                f"the memory page at {begin:#x} belonged to a tensor that outlives the step and is"
                " not protected"
            )
    return Survey(hit_state, tuple(hit_stripes), unfit)


def _overlap(rows: list[torch.Tensor], begin: int, end: int) -> bool:
    return any(row.data_ptr() < end and begin < row.data_ptr() + row.numel() for row in rows)

"""Elastic training as MindSpeed-LLM does it: micro-batches are spread over the ranks that are left.
And the same by hand, for a run in which no rank is lost.

BY_HAND: "STEP:BACK:RANK,…": the ranks leave after STEP updates, and come back after BACK updates;
with -1 they do not."""

from __future__ import annotations

import os
from typing import Any

import gloo_device as device
import sharded
import torch.distributed as dist
from mindio_ttp.framework_ttp.ttp_decorator import tft_get_repair_step, tft_get_repair_type
from sharded import DP_RANKS, MP_RANKS, RANK, WORLD, groups, new_group, present

MODEL, OPTIMIZER, SCHEDULER = 1, 2, 3  # places of the decorated function's arguments
MICRO = int(os.environ.get("MICRO", "1"))  # micro-batches of a rank in the full job
TOTAL = MICRO * len(DP_RANKS)


def shares() -> list[int]:
    """The micro-batches of a step that this rank computes: TOTAL // present, one more on the first
    TOTAL % present."""
    return list(range(present.index(RANK), TOTAL, len(present)))


def leave(dp_ranks: list[int], ranks: list[int]) -> None:
    """Groups of the ranks that are left, made with the store of the full group."""
    present[:] = dp_ranks
    device.forget_links()
    with device.making_groups():
        groups["world"] = new_group(ranks)
        groups["dp"] = new_group(dp_ranks)
        groups["mp"] = new_group(MP_RANKS)


def at(step: int, args: Any) -> None:
    args[OPTIMIZER].steps = args[SCHEDULER].steps = step
    args[OPTIMIZER].gather()


def shrink(dp_ranks: list[int], ranks: list[int], args: Any, params: str) -> None:
    assert params == '{"scale-in-strategy": "DP"}' and tft_get_repair_type() == "unknow"
    assert present == DP_RANKS, "it was told already that ranks have left"
    assert RANK in dp_ranks and set(dp_ranks) < set(DP_RANKS) and set(dp_ranks) <= set(ranks)
    leave(dp_ranks, ranks)
    at(tft_get_repair_step(), args)


# -- by hand ---------------------------------------------------------------------------------------

_full: dict[str, Any] = {}  # the groups of all ranks, while some have left


def by_hand(args: Any) -> None:
    """Before a step."""
    begin, back, listed = os.environ.get("BY_HAND", "-1:-1:0").split(":")
    away, step = set(map(int, listed.split(","))), args[OPTIMIZER].steps
    if step == int(begin) and not _full:
        _full.update(groups)
        if RANK not in away:
            leave([r for r in DP_RANKS if r not in away], sorted(set(range(WORLD)) - away))
            at(step, args)
        elif int(back) < 0:
            os._exit(0)
        else:
            step = int(back)
    if step == int(back) and _full:
        groups.update(_full)
        _full.clear()
        present[:] = DP_RANKS
        dist.barrier()
        give_back(away, args)
        at(step, args)


def give_back(away: set[int], args: Any) -> None:
    """Each rank of `away` gets the state from one that has the same part."""
    parts = len(DP_RANKS) // sharded.REPLICAS
    for place, rank in enumerate(DP_RANKS):
        if rank not in away:
            continue
        source = next(r for r in DP_RANKS[place % parts :: parts] if r not in away)
        for tensor in args[OPTIMIZER].state if RANK in (rank, source) else ():
            if source == RANK:
                dist.send(tensor, rank)
            else:
                dist.recv(tensor, source)

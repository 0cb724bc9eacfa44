"""Reads a framework's replica_info: a list, by kind of optimizer, of dicts with `rank_list` (the
ranks of the group), `replica_cnt` (how often each part exists in it) and `replica_shift` (not
used)."""

from __future__ import annotations

from typing import Any

from taskd.adaptor.mindio.controller import MOST_RANKS
from taskd.messages.values import ReplicaGroup

MOST = 1000  # kinds of optimizers, documented


def groups(rank: int, replica_info: Any) -> tuple[ReplicaGroup, ...]:
    """Raises ValueError with the value that is wrong, and what is allowed."""
    if not isinstance(replica_info, list) or not 0 < len(replica_info) <= MOST:
        raise ValueError(
            f"tft_set_optimizer_replica: replica_info is {replica_info!r}; give a list of 1 to"
            f" {MOST} dicts"
        )
    return tuple(_group(rank, kind, entry) for kind, entry in enumerate(replica_info))


def _group(rank: int, kind: int, entry: Any) -> ReplicaGroup:
    where = f"tft_set_optimizer_replica: replica_info[{kind}]"
    if not isinstance(entry, dict):
        raise ValueError(f"{where} is {entry!r}; give a dict with rank_list and replica_cnt")
    ranks = _ranks(rank, entry.get("rank_list"), f"{where}['rank_list']")
    count = entry.get("replica_cnt")
    if type(count) is not int or not 1 <= count <= len(ranks) or len(ranks) % count:
        raise ValueError(
            f"{where}['replica_cnt'] is {count!r}; it must divide the {len(ranks)} ranks of"
            " rank_list"
        )
    return ReplicaGroup(ranks, count)


def data_parallel(rank: int, ranks: Any) -> tuple[int, ...]:
    """The data-parallel group of `rank`, ascending. Raises ValueError."""
    return tuple(sorted(_ranks(rank, ranks, "tft_set_dp_group_info: dp_rank_list")))


def _ranks(rank: int, ranks: Any, what: str) -> tuple[int, ...]:
    if (
        not isinstance(ranks, list | tuple)
        or not all(type(r) is int and 0 <= r < MOST_RANKS for r in ranks)
        or len(set(ranks)) != len(ranks)
        or rank not in ranks
    ):
        raise ValueError(f"{what} is {ranks!r}; give a list of different ranks with rank {rank}")
    return tuple(ranks)

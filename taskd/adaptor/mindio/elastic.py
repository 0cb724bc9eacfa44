"""Elastic training with a framework that copies its own state: ranks leave, and come back.

The framework does it all in four handlers: given the ranks that are left, it forms its groups anew
and spreads the micro-batches over them; once they are back, it takes the full groups, gives the
newcomers their state and rolls its loop back. It hears only once that ranks leave, until all are
back: MindSpeed-LLM takes the micro-batches that it finds for those of the full job.
"""

from __future__ import annotations

from collections.abc import Collection

from taskd.adaptor.mindio import handlers
from taskd.adaptor.mindio.rank import Rank

# what ClusterD orders, which is what taskd does: whole data-parallel lanes
SHRINK, GROW = '{"scale-in-strategy": "DP"}', '{"scale-out-strategy": "DP"}'


def obstacle(rank: Rank) -> str:
    """Why the job cannot go on without some of its ranks; "" if it can, as far as this rank
    knows."""
    if rank.shrunk:
        return "the framework goes on without some ranks already"
    if not rank.zit:
        return (
            "tft_init_processor was called without enable_zit; MindSpeed-LLM:"
            " --enable-elastic-training"
        )
    if missing := [name for name in handlers.ELASTIC if name not in rank.handlers]:
        return f"the framework has registered no tft_register_{missing[0]}_handler"
    if not rank.data_parallel:
        return "the framework has not called tft_set_dp_group_info"
    if not rank.groups:
        return "the framework has not called tft_set_optimizer_replica"
    for kind, group in enumerate(rank.groups):
        if sorted(group.ranks) != list(rank.data_parallel):
            return (
                f"optimizer {kind} is spread over ranks {sorted(group.ranks)}, and batches over"
                f" {list(rank.data_parallel)}: context and expert parallelism (CP, EP) must be 1"
            )
        if group.count < 2:
            return f"each part of optimizer {kind} is on one rank alone (replica_cnt 1)"
    return ""


def unsettled(rank: Rank) -> str:
    """Why this rank, which has stopped, cannot go on from where it is without a rollback; "" if it
    can. Between an update and its tft_pause_train the loop gathers parameters and counts."""
    updates = rank.updates.step
    if rank.settled == updates:
        return ""
    return (
        f"rank {rank.agent.rank} was stopped before it called tft_pause_train after update"
        f" {updates}, and nothing is rolled back when ranks leave"
    )


def left(rank: Rank, away: Collection[int]) -> tuple[list[int], list[int]]:
    """The ranks that are left: of this rank's data-parallel group, and of the job."""
    return (
        [r for r in rank.data_parallel if r not in away],
        [r for r in range(rank.world_size) if r not in away],
    )

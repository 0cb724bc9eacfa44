"""Which nodes a job waits for at its start, and what to do about it."""

from __future__ import annotations

from collections.abc import Set

from taskd.core.abbreviate import abbreviate


def why(nodes: int, joined: Set[int], arrived: Set[int], place: str) -> str:
    """Why not all `nodes` have joined, with the remedy; "" if they have. `arrived`: whose launchers
    have come; launchers of a c10d rendezvous have no number before they have met. `place`: the
    manager's."""
    if len(joined) >= nodes:
        return ""
    missing = [n for n in range(nodes) if n not in joined and n not in arrived]
    if not missing:
        return (
            f"all {nodes} launchers have come, but {nodes - len(joined)} of them have not met the"
            " others: --master_addr and --master_port (or --rdzv_endpoint) must be the same on all"
            " nodes, and reachable from all (firewall)"
        )
    which = f"node{'s' * (len(missing) > 1)} {abbreviate(missing)}"
    return (
        f"{nodes - len(missing)} of {nodes} nodes have come, and the job waits for {which}: start"
        " the job's command there (torchrun: with TASKD_PROCESS_ENABLE=on), with the same"
        f" TASKD_SECRET and MINDX_TASK_ID; {place} must be reachable from there (firewall,"
        " TASKD_MANAGER_ADDR)"
    )

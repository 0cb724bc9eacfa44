"""The machine's limits for a process."""

from __future__ import annotations

import resource

from taskd.doctor.finding import Finding, error, ok, warning


def open_files(limits: tuple[int, int], nodes: int, ranks_per_node: int) -> Finding:
    """Compare the soft and hard limit with the job's size. The manager raises its own soft limit;
    ranks keep the one they start with."""
    name, (soft, hard) = "open files", limits
    # manager/server.py: one connection for each agent, and the process's own
    manager = nodes + 200
    # gloo has a connection to every other rank, and during a repair also the previous
    # communicator's; 200 for torch and the script
    rank = 2 * (nodes * ranks_per_node - 1) + 200
    size = (
        f"{nodes} {'node' if nodes == 1 else 'nodes'} of {ranks_per_node}"
        f" {'rank' if ranks_per_node == 1 else 'ranks'}"
    )
    text = f"soft limit {_number(soft)}, hard limit {_number(hard)}"
    if _below(hard, manager):
        return error(
            name,
            f"{text}; a manager of {size} needs {manager}",
            f"ulimit -Hn {manager} as root, or the container's settings",
        )
    if _below(soft, rank):
        which = (
            f"-Sn {rank} before the launcher"
            if not _below(hard, rank)
            else f"-n {rank} as root, or the container's settings"
        )
        return warning(name, f"{text}; a rank of {size} may need {rank}", f"ulimit {which}")
    return ok(name, f"{text}, enough for {size}")


def _below(limit: int, needed: int) -> bool:
    return limit != resource.RLIM_INFINITY and limit < needed


def _number(limit: int) -> str:
    return "none" if limit == resource.RLIM_INFINITY else str(limit)

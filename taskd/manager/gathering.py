"""The nodes of a job as they come: which it waits for, and which differ from the others."""

from __future__ import annotations

from collections.abc import Mapping, Set

from taskd.core.abbreviate import named
from taskd.messages.values import About

VERSIONS = ("torch", "python", "taskd")


def differs(node: int, about: About, others: Mapping[int, About]) -> str:
    """How the versions on `node` differ from those on the first of the other nodes; "" if not at
    all. Replicas computed by different versions need not agree, and messages may not be read."""
    first = next((n for n in sorted(others) if n != node), None)
    if first is None:
        return ""
    found = [
        f"{name} {mine} on node {node} ({about.host}), {theirs} on node {first}"
        f" ({others[first].host})"
        for name in VERSIONS
        if (mine := getattr(about, name)) != (theirs := getattr(others[first], name))
        and mine
        and theirs
    ]
    if not found:
        return ""
    return f"nodes run different versions: {'; '.join(found)}. Use the same image on all of them"


def missing(nodes: int, joined: Set[int], arrived: Set[int], place: str) -> str:
    """Why not all `nodes` have joined, with the remedy; "" if they have. `arrived`: whose launchers
    have come; launchers of a c10d rendezvous have no number before they have met. `place`: the
    manager's."""
    if len(joined) >= nodes:
        return ""
    absent = [n for n in range(nodes) if n not in joined and n not in arrived]
    if not absent:
        return (
            f"all {nodes} launchers have come, but {nodes - len(joined)} of them have not met the"
            " others: --master_addr and --master_port (or --rdzv_endpoint) must be the same on all"
            " nodes, and reachable from all (firewall)"
        )
    which = named("node", absent)
    return (
        f"{nodes - len(absent)} of {nodes} nodes have come, and the job waits for {which}: start"
        " the job's command there (torchrun: with TASKD_PROCESS_ENABLE=on), with the same"
        f" TASKD_SECRET and MINDX_TASK_ID; {place} must be reachable from there (firewall,"
        " TASKD_MANAGER_ADDR)"
    )

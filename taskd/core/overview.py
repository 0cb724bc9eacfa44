"""Renders the current status of a job as a few lines of text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskd.core.abbreviate import abbreviate

if TYPE_CHECKING:
    from taskd.core.coordinator import Coordinator
    from taskd.core.topology import Node

NODES = 40  # listed one by one


def overview(job: Coordinator) -> str:
    state = job.job
    counts = (
        f"{len(state.ranks)} ranks on {state.settings.nodes} node{'s' * (state.settings.nodes > 1)}"
    )
    lines = [
        f"{_state(job)}; {counts}, generation {state.generation}, {job.recovery.incidents}"
        " incidents seen by this manager"
    ]
    if not state.repairs:
        lines.append("recovery is paused (process-recover-enable): the next fault ends the job")
    for number, node in sorted(state.topology.nodes.items())[:NODES]:
        lines.append(f"node {number}: ranks {node.ranks[0]}-{node.ranks[-1]}, {_of(node)}")
    if len(state.topology.nodes) > NODES:
        lines.append(
            f"and {len(state.topology.nodes) - NODES} more nodes; {len(state.topology.lost)} of all"
            " nodes are lost"
        )
    waiting = state.topology.standbys
    if waiting:
        lines.append(f"standbys: {abbreviate(agent[:8] for agent in waiting)}")
    return "\n".join(lines)


def _state(job: Coordinator) -> str:
    state, incident = job.job, job.recovery.incident
    if state.over:
        return "over"
    if incident is not None:
        return (
            f"incident {incident.number} is being repaired: {incident.phase.value} by"
            f" {incident.strategy}, round {incident.rounds}"
        )
    if not state.protected:
        return (
            f"starting: {sum(rank.joined for rank in state.ranks.values())} ranks have called"
            " protect()"
        )
    if job.pause.step is not None:
        return f"paused before step {job.pause.step}"
    return "training, protected"


def _of(node: Node) -> str:
    if node.assignee:
        return f"being taken over by standby {node.assignee[:8]}"
    if node.lost:
        return "lost, waiting for a standby"
    return "running" if node.ended is None else "ended"

"""The current status of a job: as a few lines of text, and as a bounded message."""

from __future__ import annotations

from taskd.core.abbreviate import abbreviate
from taskd.core.coordinator import Coordinator
from taskd.core.job.topology import Node, Topology
from taskd.core.rank_states import RankStates
from taskd.messages.to_operator import (
    AWAY,
    WORST,
    NodeSeen,
    Overview,
    Place,
    ShrunkSeen,
    incident_seen,
)
from taskd.messages.values import Spans

NODES = 40  # listed one by one
# "silent": by the journal alone, there is no manager, and how the job ended is not known
STATES = ("starting", "training", "repairing", "paused", "voting", "over", "silent")


def overview(job: Coordinator) -> str:
    state = job.job
    topology = state.topology
    counts = (
        f"{topology.world_size} ranks on {state.settings.nodes}"
        f" node{'s' * (state.settings.nodes > 1)}"
    )
    lines = [
        f"{status(job)[1]}; {counts}, generation {state.generation}, {job.recovery.incidents}"
        " incidents seen by this manager"
    ]
    if not state.repairs:
        lines.append("recovery is paused (process-recover-enable): the next fault ends the job")
    if state.away:
        lines.append(f"shrunk: {job.recovery.elastic.words}")
    for number, node in sorted(topology.nodes.items())[:NODES]:
        ranks = f"ranks {node.ranks[0]}-{node.ranks[-1]}"
        lines.append(f"node {number}: {ranks}, {_of(topology, node)}")
    if len(topology.nodes) > NODES:
        lines.append(
            f"and {len(topology.nodes) - NODES} more nodes; {len(topology.lost)} of all"
            " nodes are lost"
        )
    waiting = topology.standbys
    if waiting:
        lines.append(f"standbys: {abbreviate(agent[:8] for agent in waiting)}")
    return "\n".join(lines)


def answer(name: str, request: str, ranks: RankStates, place: Place) -> Overview:
    """The answer to OverviewAsked. `name`: of the job."""
    job, now, unix = ranks.job, ranks.now, ranks.unix
    state, incident, seen = job.job, job.recovery.incident, ranks.seen
    word, detail = status(job)
    topology = state.topology
    troubled = [
        (n, _of(topology, node))
        for n, node in sorted(topology.nodes.items())
        if not _runs(topology, node)
    ]
    missing = [n for n in range(state.settings.nodes) if n not in topology.nodes]
    troubled += [(n, "has not joined") for n in missing]
    incidents = [incident_seen(past) for past in ranks.recent]
    if incident is not None:
        began = unix - (now - incident.began)
        plan = incident.round.plan
        current = {
            "incident": incident.number,
            "began": began,
            "seconds": now - incident.began,
            "strategy": incident.strategy,
            "result": "under way",
            "phase": incident.phase.value,
            "round": incident.rounds,
            "step": -1 if plan is None else plan.step,
            "reached": incident.round.reached,
            "ranks": sorted(incident.replaced),
            "faults": incident.faults,
            "phases": incident.timeline.durations(now),
        }
        incidents.append(incident_seen(current))
    listed, unwell = ranks.listed()
    return Overview(
        request=request,
        job=name,
        time=unix,
        state=word,
        detail=detail,
        nodes=state.settings.nodes,
        ranks=topology.world_size,
        generation=state.generation,
        term=job.election.candidate.term,
        repairs=state.repairs,
        step=seen.step,
        highest=seen.highest,
        total=seen.total,
        rate=ranks.progress.rate,
        usual=seen.usual if not state.unprotected else 0.0,  # ranks publish nothing
        heard=max(now - seen.heard, 0.0) if seen.step >= 0 else 0.0,
        phases=seen.phases,
        listed=listed,
        unwell=unwell,
        troubled=tuple(NodeSeen(n, text) for n, text in troubled[:WORST]),
        troubles=len(troubled),
        standbys=len(topology.standbys),
        incidents=tuple(incidents[-WORST:]),
        incidents_seen=job.recovery.incidents,
        shrunk=_shrunk(job, now, unix),
        came=ranks.came,
        memory=seen.memory,
        place=place,
    )


def _shrunk(job: Coordinator, now: float, unix: float) -> ShrunkSeen | None:
    state, topology, elastic = job.job, job.job.topology, job.recovery.elastic
    if not state.away:
        return None
    absent = {
        number
        for number, node in topology.nodes.items()
        if node.lost and not node.assignee and topology.gone(node)
    }
    preparing = sorted((n, agent) for agent, n in topology.reserved.items() if n in absent)
    waiting = sorted(absent - {number for number, _ in preparing})
    return ShrunkSeen(
        ranks=len(state.ranks),
        of=topology.world_size,
        since=0.0 if elastic.since is None else max(unix - (now - elastic.since), 0.0),
        shares=elastic.shares,
        away=Spans.of(sorted(state.away)).spans[:WORST],
        waiting=tuple(waiting[:WORST]),
        waits=len(waiting),
        preparing=tuple(preparing[:WORST]),
    )


def state_of(job: Coordinator) -> str:
    """What the job does, one of STATES."""
    if job.job.over:
        return "over"
    if not job.election.in_charge:
        return "voting"
    if job.recovery.incident is not None:
        return "repairing"
    if not job.job.protected and not job.job.unprotected:
        return "starting"
    return "training" if job.pause.step is None else "paused"


def status(job: Coordinator) -> tuple[str, str]:
    """What the job does: one of STATES, and in words."""
    word, incident = state_of(job), job.recovery.incident
    if word == "voting":
        return word, "this manager waits for the votes of a majority of the agents"
    if word == "repairing" and incident is not None:
        return word, (
            f"incident {incident.number} is being repaired: {incident.phase.value} by"
            f" {incident.strategy}, round {incident.rounds}"
        )
    if word == "starting":
        return word, (
            f"starting: {sum(rank.joined for rank in job.job.ranks.values())} ranks have called"
            " protect()"
        )
    if word == "paused":
        return word, f"paused before step {job.pause.step}"
    if word == "training" and (why := job.job.unprotected):
        return word, f"training, not protected: {why}"
    return word, "training, protected" if word == "training" else word


def _runs(topology: Topology, node: Node) -> bool:
    return node.living and not node.assignee and not topology.gone(node)


def _of(topology: Topology, node: Node) -> str:
    if node.assignee:
        return f"being taken over by standby {node.assignee[:8]}"
    if topology.gone(node):
        return AWAY
    if node.lost:
        return "lost, waiting for a standby"
    return "running" if node.ended is None else "ended"

"""Messages from the manager to an operator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct

from taskd.messages.values import (
    Count,
    HostName,
    Job,
    Message,
    Name,
    Node,
    NodeOrNone,
    Number,
    Rank,
    Report,
    Seconds,
    Step,
    StepOrNone,
)

LISTED = 32  # most ranks of a job that are all listed; of a larger one, the worst
PAGE = 1000  # ranks that are asked for at once
WORST = 10  # ranks, nodes and incidents that are listed where there may be many
FAULTS = 5  # of an incident
# "slow": the others wait for it in each step; "late": in this one; "hung": it makes no progress,
# and its process is ended; "evicted": that is ended for another reason; "dead": it has no
# process; "replaced": it gets or has just got another one; "lost", "missing": its node is
RANK_STATES = (
    *("well", "slow", "late", "stopped", "hung", "evicted", "dead", "replaced", "away", "lost"),
    "missing",
)
AWAY = "away: others stand in for its ranks"  # state of a node


class Answer(Message, frozen=True):
    """The answer to `request`."""

    request: Name
    ok: bool
    text: Report


class RankSeen(Struct, frozen=True, forbid_unknown_fields=True):
    """A rank according to its node's last heartbeat: its `phase`, one of PHASES (node_progress), ""
    if nothing is known; the seconds that an attempt usually takes it, 0 if not known; whether it is
    slow. `state`: one of RANK_STATES, and `why`. `host`: its node's; `pid`: of its process, 0 for
    none; `incarnation`: the number of that process; `device`: as torch names it, "" for a CPU."""

    rank: Rank
    node: NodeOrNone
    step: Step
    phase: Name
    usual: Seconds
    slow: bool = False
    state: Name = "well"
    why: Report = ""
    host: HostName = ""
    pid: Count = 0
    incarnation: Number = 0
    device: Name = ""


class Place(Struct, frozen=True, forbid_unknown_fields=True):
    """Where a job is found: the machine and process of its manager, and the port that it listens
    at; its log directory and its journal there."""

    host: HostName
    pid: Count
    port: Count
    logs: Report
    journal: Report


class NodeSeen(Struct, frozen=True, forbid_unknown_fields=True):
    """A node that does not run as it should, in words."""

    node: NodeOrNone
    state: Report


class ShrunkSeen(Struct, frozen=True, forbid_unknown_fields=True):
    """Some ranks are away, and others stand in for them: `ranks` of `of` train. `since`: Unix time,
    0 if an earlier manager knew it. `shares`: a step takes up to so many times as long, 0 if not
    known. `away`: the first of these ranks, as spans of a first and a last one and the distance
    between two. `waiting`: nodes that come back with a standby, the first of `waits`. `preparing`:
    the first nodes whose standby is being prepared, and that standby."""

    ranks: Count
    of: Count
    since: Seconds
    shares: Count
    away: Annotated[tuple[tuple[Rank, Rank, Count], ...], Meta(max_length=WORST)]
    waiting: Annotated[tuple[Node, ...], Meta(max_length=WORST)]
    waits: Count
    preparing: Annotated[tuple[tuple[Node, Name], ...], Meta(max_length=WORST)]


class IncidentSeen(Struct, frozen=True, forbid_unknown_fields=True):
    """An incident. `result`: "under way" in `phase`, or "repaired", "restarted", "ended". `began`:
    Unix time. `reached`: the highest step that a rank had come to, `step` the one that was
    repeated, -1 if not known yet. `phases`: seconds in each. `faults`: the first of `more`."""

    incident: Number
    began: Seconds
    seconds: Seconds
    strategy: Name
    result: Name
    phase: Name
    round: Count
    step: StepOrNone
    reached: StepOrNone
    ranks: Annotated[tuple[Rank, ...], Meta(max_length=WORST)]  # the first of those replaced
    replaced: Count
    faults: Annotated[tuple[Report, ...], Meta(max_length=FAULTS)]
    more: Count  # faults in all
    phases: dict[Name, Seconds]


def incident_seen(past: Mapping[str, Any]) -> IncidentSeen:
    """An incident from its journal fields."""
    faults, ranks = list(past["faults"]), list(past["ranks"])
    return IncidentSeen(
        incident=past["incident"],
        began=max(past["began"], 0.0),
        seconds=max(past["seconds"], 0.0),
        strategy=past["strategy"],
        result=past["result"],
        phase=past.get("phase", ""),
        round=past.get("round", 0),
        step=past["step"],
        reached=past["reached"],
        ranks=tuple(ranks[:WORST]),
        replaced=len(ranks),
        faults=tuple(fault[:1000] for fault in faults[:FAULTS]),
        more=len(faults),
        phases={name: max(seconds, 0.0) for name, seconds in past["phases"].items()},
    )


class Overview(Message, frozen=True):
    """The answer to OverviewAsked, of bounded size for any job. `state`: a word, see
    core.overview.STATES; `detail`: what it does, in words. `step`: the lowest of all ranks, and
    `highest`, -1 if not known; `total`: before which step the loop ends, 0 if not known. `rate`:
    steps a minute lately, 0 if not known. `usual`: seconds that an attempt usually takes the
    median rank. `phases`: how many ranks are in each. `listed`: all ranks of a small job, of a
    large one the first of those that are not well, `unwell` in all. `time`: Unix time. `heard`:
    seconds since the oldest heartbeat of a node. `came`: when the last rank came to `step`, Unix
    time, 0 if not known. `ranks`: also those that are away; `shrunk`: None if there are none.
    `memory`: bytes that the records of a node take, where most."""

    request: Name
    job: Job
    time: Seconds
    state: Name
    detail: Report
    nodes: Count
    ranks: Count
    generation: Number
    term: Number
    repairs: bool
    step: StepOrNone
    highest: StepOrNone
    total: Step
    rate: Seconds
    usual: Seconds
    heard: Seconds
    phases: dict[Name, Count]
    listed: Annotated[tuple[RankSeen, ...], Meta(max_length=LISTED)]
    troubled: Annotated[tuple[NodeSeen, ...], Meta(max_length=WORST)]
    troubles: Count  # nodes in all that do not run as they should
    standbys: Count
    incidents: Annotated[tuple[IncidentSeen, ...], Meta(max_length=WORST)]  # the newest last
    incidents_seen: Count  # by this manager
    shrunk: ShrunkSeen | None = None
    came: Seconds = 0.0
    place: Place | None = None
    unwell: Count = 0
    memory: Count = 0


class RanksSeen(Message, frozen=True):
    """The answer to RanksAsked."""

    request: Name
    ranks: Annotated[tuple[RankSeen, ...], Meta(max_length=PAGE)]


class NotInCharge(Message, frozen=True):
    """The answer to `request` of a manager that waits for the votes of a majority."""

    request: Name


ToOperator = Answer | Overview | RanksSeen | NotInCharge

"""The data that `taskd status` shows, from a manager's answer or, without a manager, from the job's
journal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from taskd.history.facts import OPEN, End, Incident, Sample
from taskd.history.model import Job
from taskd.messages.to_operator import (
    AWAY,
    WORST,
    IncidentSeen,
    NodeSeen,
    Overview,
    Place,
    RankSeen,
    ShrunkSeen,
    incident_seen,
)

UNDER_WAY = "under way"
SHOWN = 100  # most incidents that are kept
NODES = 100_000  # that are believed
NEW = (0, "", 0.0)  # the round and the phase of an incident that has come to none


@dataclass(frozen=True)
class Model:
    """A job. `seen`: its state according to its manager, or to the journal. `source`: "manager" or
    "journal"; `where`: its address or path; `age`: seconds since that state. `incidents`: the
    newest last, also those of earlier managers, `more` of them in all. `ranks`: all that are known
    one by one."""

    source: str
    where: str
    age: float
    seen: Overview
    incidents: tuple[IncidentSeen, ...] = ()
    more: int = 0
    end: End | None = None
    ranks: tuple[RankSeen, ...] = ()

    @property
    def over(self) -> bool:
        return self.end is not None or self.seen.state == "over"

    @property
    def plain(self) -> dict[str, Any]:
        """What `taskd status --json` prints."""
        seen = _plain(self.seen)
        for field in ("type", "request", "incidents", "incidents_seen", "listed"):
            seen.pop(field, None)
        end = self.end
        return {
            "source": self.source,
            "where": self.where,
            "age": round(self.age, 3),
            "end": None if end is None else vars(end),
            **seen,
            "listed": [_plain(rank) for rank in self.ranks],
            "incidents": [_plain(incident) for incident in self.incidents],
            "incidents_seen": self.more,
        }


def of_manager(
    where: str,
    seen: Overview,
    before: Sequence[IncidentSeen] = (),
    shrunk: ShrunkSeen | None = None,
) -> Model:
    """The model of a manager's answer. `before`: incidents that a journal knows; of those that both
    know, the manager's are taken. `shrunk`: how many ranks trained by the journal when this manager
    first answered."""
    known = {i.began for i in seen.incidents}
    first = min((i.began for i in seen.incidents), default=seen.time)
    # the same moment, by the clock of another manager or rounded
    earlier = [
        i
        for i in before
        if i.result != UNDER_WAY and i.began < first - 0.001 and i.began not in known
    ]
    incidents = (*earlier, *seen.incidents)
    if seen.shrunk is not None and shrunk is not None and not seen.shrunk.since:
        same = (shrunk.ranks, shrunk.away) == (seen.shrunk.ranks, seen.shrunk.away)
        since = shrunk.since if same else 0.0
        seen = replace(seen, shrunk=replace(seen.shrunk, since=since))
    unlisted = max(seen.incidents_seen - len(seen.incidents), 0)
    return Model(
        "manager",
        where,
        0.0,
        seen,
        incidents[-SHOWN:],
        len(incidents) + unlisted,
        ranks=seen.listed,
    )


def of_journal(where: str, job: Job, now: float) -> Model:
    """The model of a job by its journal, which was kept with `most` SHOWN; `now` is Unix time."""
    incidents = [_seen(i, i.result) for i in job.incidents if i.result != OPEN]
    if job.open is not None:
        job.open.cut(job.last)
        incidents.append(_seen(job.open, UNDER_WAY))
    path = Path(where).absolute()
    manager = job.manager
    place = Place(manager.host, manager.pid, manager.port, str(path.parent), str(path))
    return Model(
        source="journal",
        where=where,
        age=max(now - job.last, 0.0),
        seen=replace(_overview(job), place=place),
        incidents=tuple(incidents[-SHOWN:]),
        more=job.closed + (job.open is not None),
        end=job.end,
        ranks=tuple(_ranks(job)),
    )


def _ranks(job: Job) -> Iterator[RankSeen]:
    """The ranks whose processes are known, as they were at the last entry."""
    last = job.samples[-1] if job.samples else Sample(0.0)
    slow = {rank: seconds for rank, _, seconds in last.slow}
    waited = job.slow.now.ranks if job.slow.now is not None else {}
    replaced = job.open.replaced if job.open is not None else set()
    away = job.shrunk.missing if job.shrunk is not None else set()
    for node, processes in sorted(job.processes.items()):
        for at, rank in enumerate(processes.ranks):
            state, why = "well", ""
            if node in job.lost:
                state, why = "lost", job.lost[node]
            elif rank in away:
                state = "away"
            elif rank in replaced:
                state = "replaced"
            elif rank in waited:
                state, why = "slow", f"the others wait for it {waited[rank]:.0%} of each step"
            elif rank in slow and last.usual:
                state, why = "slow", f"its steps take {slow[rank] / last.usual:.2f} times as long"
            yield RankSeen(
                rank,
                node,
                max(last.step, 0),
                "",
                slow.get(rank, last.usual),
                state == "slow",
                state,
                why,
                job.about.get(node, {}).get("host", ""),
                processes.pids[at],
                processes.incarnations[at],
                processes.devices[at] if processes.devices else "",
            )


def _seen(incident: Incident, result: str) -> IncidentSeen:
    round_, phase, _ = incident.entered[-1] if result == UNDER_WAY and incident.entered else NEW
    return incident_seen(
        {**vars(incident), "incident": incident.number, "result": result, "ranks": incident.ranks}
        | {"round": round_, "phase": phase}
    )


def _overview(job: Job) -> Overview:
    last = job.samples[-1] if job.samples else Sample(0.0)
    state, detail = _state(job)
    away = job.away
    states = {n: f"lost: {why}" for n, why in job.lost.items()} | dict.fromkeys(away, AWAY)
    troubled = [NodeSeen(n, state) for n, state in sorted(states.items())]
    missing = [n for n in range(min(job.nodes, NODES)) if n not in job.joined | job.lost.keys()]
    troubled += [NodeSeen(n, "has not joined") for n in missing]
    return Overview(
        request="",
        job=job.name,
        time=job.last,
        state=state,
        detail=detail,
        nodes=job.nodes,
        ranks=job.ranks,
        generation=0,
        term=job.term,
        repairs=job.repairs,
        step=last.step,
        highest=last.highest,
        total=last.total,
        rate=last.rate,
        usual=last.usual,
        heard=last.heard,
        phases=last.phases,
        listed=(),
        troubled=tuple(troubled[:WORST]),
        troubles=len(troubled),
        standbys=0,
        incidents=(),
        incidents_seen=job.closed,
        shrunk=_shrunk(job, away),
        memory=last.memory,
    )


def _shrunk(job: Job, away: set[int]) -> ShrunkSeen | None:
    shrunk, absent = job.shrunk, away & job.lost.keys()
    if shrunk is None:
        return None
    preparing = sorted((n, agent) for n, agent in job.preparing.items() if n in absent)
    waiting = sorted(absent - {n for n, _ in preparing})
    return ShrunkSeen(
        ranks=shrunk.ranks,
        of=shrunk.of,
        since=shrunk.since,
        shares=shrunk.shares,
        away=shrunk.away[:WORST],
        waiting=tuple(waiting[:WORST]),
        waits=len(waiting),
        preparing=tuple(preparing[:WORST]),
    )


def _state(job: Job) -> tuple[str, str]:
    if job.end is not None:
        return "over", f"ended {'well' if job.end.ok else 'with an error'}: {job.end.reason}"
    if job.open is not None:
        phase = job.open.entered[-1][1] if job.open.entered else ""
        doing = f"incident {job.open.number} was being repaired: {phase}"
    elif job.pause is not None:
        doing = f"it was paused before step {job.pause.step}"
    elif job.in_loop:
        doing = "it was training"
    else:
        doing = "it was starting"
    left = f" (the manager left: {job.left})" if job.left else ""
    return "silent", f"no manager answers{left}; by its last entry {doing}"


def _plain(value: Overview | IncidentSeen | RankSeen) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(value))
    return plain

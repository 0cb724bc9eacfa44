"""The account as a trace that https://ui.perfetto.dev opens: Chrome's trace events.

A process is a node, a thread is a rank; the first process is the job, with its phases, incidents
and steps a minute. Times are in microseconds after the job's first entry. Perfetto takes numbers of
threads as unique in the whole trace, and 0 as the idle process.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from taskd.history.facts import Incident
from taskd.history.report.account import Account
from taskd.history.report.rounds import EVENTS, Round, latest

JOB, UNKNOWN = 1, 2  # the processes of the job, and of ranks whose node is not known
FIRST = 3  # of node 0
PHASES, INCIDENTS, LOG, SHRUNK = 1, 2, 3, 4  # the threads of the job
RANKS = 10  # the thread of rank 0
MOST = 200_000  # moments of ranks; with more, only the last ranks of each round are in the trace
OVER = ("CLOSED", "ENDED")


def trace(account: Account) -> dict[str, Any]:
    job = account.job
    told = [r for incident in job.incidents for r in incident.rounds]
    every = sum(len(r.ranks) * len(r.times) for r in told) <= MOST
    shown = [[_shown(r, incident, every) for r in incident.rounds] for incident in job.incidents]
    events = [*_names(account, shown), *_rates(account), *_shrunk(account)]
    for number, (incident, places) in enumerate(zip(job.incidents, shown, strict=True), 1):
        events += _incident(account, number, incident, places)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "job": job.name,
            "began_unix": job.began,
            "taskd": job.version,
            "ranks": "all" if every else "the last of each round",
        },
    }


def _shown(told: Round, incident: Incident, every: bool) -> np.ndarray:
    return np.arange(len(told.ranks)) if every else latest(told, incident.ranks)


def _names(account: Account, shown: list[list[np.ndarray]]) -> Iterable[dict[str, Any]]:
    """The names of the processes and threads that have an event."""
    job = account.job
    yield _meta("process_name", JOB, None, f"job {job.name}")
    for thread, name in ((PHASES, "phases"), (INCIDENTS, "incidents"), (LOG, "decisions and log")):
        yield _meta("thread_name", JOB, thread, name)
    if job.shrunken:
        yield _meta("thread_name", JOB, SHRUNK, "ranks that train")
    ranks = sorted(
        {
            rank
            for incident, places in zip(job.incidents, shown, strict=True)
            for told, seen in zip(incident.rounds, places, strict=True)
            for rank in told.ranks[seen].tolist()
        }
        | {d.rank for incident in job.incidents for d in incident.deaths if d.rank >= 0}
    )
    nodes = {rank: job.places.of(rank)[0] for rank in ranks}
    for node in sorted(set(nodes.values())):
        yield _meta("process_name", _process(node), None, f"node {node}" if node >= 0 else "ranks")
    for rank in ranks:
        yield _meta("thread_name", _process(nodes[rank]), rank + RANKS, f"rank {rank}")


def _rates(account: Account) -> Iterable[dict[str, Any]]:
    for begin, _, rate in account.rates:
        at = _us(begin - account.job.began)
        args = {"steps/min": round(rate, 3)}
        yield {"ph": "C", "name": "steps a minute", "pid": JOB, "ts": at, "args": args}
    for begin, _, median, p99 in account.steps.over if account.steps is not None else ():
        at = _us(begin - account.job.began)
        args = {"median": round(median * 1e3, 3), "99 %": round(p99 * 1e3, 3)}
        yield {"ph": "C", "name": "step time, ms", "pid": JOB, "ts": at, "args": args}


def _shrunk(account: Account) -> Iterable[dict[str, Any]]:
    zero = account.job.began
    for was in account.job.shrunken:
        begin, end = max(was.since - zero, 0.0), max((was.until or was.since) - zero, 0.0)
        name, args = f"{was.ranks} of {was.of} ranks train", {"shares": was.shares, "away": was.who}
        yield _span(name, "shrunk", JOB, SHRUNK, begin, end, args)


def _incident(
    account: Account, number: int, incident: Incident, shown: list[np.ndarray]
) -> Iterable[dict[str, Any]]:
    zero = account.job.began
    cost = account.costs[number - 1]
    args = {
        "result": incident.result,
        "strategy": incident.strategy,
        "faults": incident.faults,
        "replaced": incident.ranks,
        "step": incident.step,
        "lost_seconds": round(cost.lost_seconds, 6),
        "steps_repeated": cost.steps_repeated,
    }
    at, name = incident.began - zero, f"incident {number}: {incident.strategy or incident.result}"
    yield {"ph": "i", "s": "t", "cat": "incident", **_event(name, JOB, INCIDENTS, at), "args": args}
    for death in filter(lambda d: d.rank >= 0, incident.deaths):
        process = _process(account.job.places.of(death.rank)[0])
        where = _event(death.cause, process, death.rank + RANKS, max(death.at - zero, 0.0))
        said = {n: getattr(death, n) for n in ("rank", "pid", "raised", "traceback")}
        yield {"ph": "i", "s": "t", "cat": "death", **where, "args": said}
    yield _span(name, "incident", JOB, INCIDENTS, at, at + incident.seconds, args)
    ends = [*(moment for _, _, moment in incident.entered[1:]), incident.ended]
    for (round_, phase, begin), end in zip(incident.entered, ends, strict=False):
        if phase not in OVER:
            said = {"round": round_}
            yield _span(phase, "phase", JOB, PHASES, begin - zero, max(end, begin) - zero, said)
    for line in incident.lines:
        about = {"text": line.text}
        where = _event(f"{line.kind}: {line.text}"[:200], JOB, LOG, max(line.at - zero, 0.0))
        yield {"ph": "i", "s": "t", "cat": "log", **where, "args": about}
    for told, places in zip(incident.rounds, shown, strict=True):
        yield from _ranks(account, incident, told, places.tolist())


def _ranks(
    account: Account, incident: Incident, told: Round, places: list[int]
) -> Iterable[dict[str, Any]]:
    """What each rank did, as the page draws it: a wait for others is a gap."""
    job = account.job
    starts: dict[str, float] = {}
    for number, phase, at in incident.entered:
        if number == told.number:
            starts.setdefault(phase, (at - incident.began) * 1e3)
    began = incident.began - job.began
    for place in places:
        rank = int(told.ranks[place])
        process, before = _process(job.places.of(rank)[0]), told.began
        for event, phase in EVENTS.items():
            moments = told.times.get(event)
            if moments is None or math.isnan(at := float(moments[place])):
                continue
            # a replacement starts as soon as its predecessor's death is known, in any phase
            begun = before if event == "ready" else max(before, starts.get(phase, before))
            begun = min(begun, at)
            said = {"round": told.number, "event": event, "wait_ms": round(begun - before, 1)}
            yield _span(
                phase, "rank", process, rank + RANKS, began + begun / 1e3, began + at / 1e3, said
            )
            before = at


def _span(
    name: str, kind: str, process: int, thread: int, begin: float, end: float, args: dict[str, Any]
) -> dict[str, Any]:
    where = _event(name, process, thread, begin)
    return {"ph": "X", "cat": kind, **where, "dur": max(_us(end) - where["ts"], 0), "args": args}


def _event(name: str, process: int, thread: int, at: float) -> dict[str, Any]:
    return {"name": name, "pid": process, "tid": thread, "ts": _us(at)}


def _meta(what: str, process: int, thread: int | None, name: str) -> dict[str, Any]:
    where = {} if thread is None else {"tid": thread}
    return {"ph": "M", "name": what, "pid": process, **where, "args": {"name": name}}


def _process(node: int) -> int:
    return node + FIRST if node >= 0 else UNKNOWN


def _us(seconds: float) -> int:
    return round(seconds * 1e6)

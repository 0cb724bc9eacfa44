"""A notice as a line on the manager's standard error: who looks at nothing else should know what
was repaired, what it cost, and what to do about what is not repaired."""

from __future__ import annotations

from taskd.core.abbreviate import named
from taskd.history.facts import ENDED, REPAIRED, span
from taskd.history.goodput import INCIDENT, REPEATED, SHRUNK, SLOW
from taskd.history.model import Job
from taskd.history.notices.content import Notice


def line(notice: Notice, job: Job) -> str:
    """The line, or "" for what other lines say. `job`: as it is after the notice's entry."""
    match notice["event"]:
        case "incident":
            return _over(notice, job) if notice["state"] == "over" else ""
        case "lost-node":
            node = notice["node"]
            return f"node {node}{_on(node, job)} is lost: {notice['why']}"
        case "slow-rank":
            return _slow(notice, job)
        case "elastic":
            return _resized(notice)
    return ""


def _over(notice: Notice, job: Job) -> str:
    if notice["result"] == ENDED:
        return ""  # the launchers give the reason
    incident = job.incidents[-1]
    cause = "; ".join(notice["faults"][:2])
    if notice["result"] != REPAIRED:
        return f"incident {notice['incident']}: all ranks are restarted; cause: {cause}"
    if dump := next((text for text in incident.tried if text.startswith("dump: ")), ""):
        return f"{dump}; training goes on after {span(notice['seconds'])}"  # nothing had failed
    spent = job.spent.seconds
    lost = sum(spent[kind] for kind in (INCIDENT, REPEATED, SLOW, SHRUNK))
    repeated = _repeated(incident.step, incident.reached)
    return (
        f"{_done(notice)} in {span(notice['seconds'])}, {repeated}, {span(lost)} lost so far;"
        f" cause: {cause}"
    )


def _done(notice: Notice) -> str:
    if not (ranks := notice["ranks"]):
        return "repaired without a new process"
    others = notice["replaced"] - len(ranks)
    more = f" and {others} more" if others > 0 else ""
    return f"{named('rank', ranks)}{more} replaced"


def _repeated(step: int, reached: int) -> str:
    """The interrupted step, and those that were taken back with it."""
    if step < 0:
        return "no step repeated"
    last = max(step, reached - 1)
    return f"step{f's {step} to {last}' if last > step else f' {step}'} repeated"


def _slow(notice: Notice, job: Job) -> str:
    rank = notice["rank"]
    node = notice.get("node", job.places.of(rank)[0])
    if "late" in notice:
        figures = f"{span(notice['late'])} in each step of {span(notice['taken'])}"
        figures = f"all others wait for it: {figures}"
    else:
        usual = f"where {span(notice['usual'])} is usual"
        figures = f"a step takes it {span(notice['seconds'])} {usual}"
    return (
        f"rank {rank} on node {node}{_on(node, job)} is slow: {figures}. Look at that machine:"
        " other processes, clock and temperature of its device, disk and network; `taskd profile`"
        " shows where the time goes, a hot switch replaces the node (docs/operations.md)"
    )


def _resized(notice: Notice) -> str:
    ranks, of, shares = notice["ranks"], notice["of"], notice["shares"]
    if ranks >= of:
        return f"all {of} ranks train again"
    times = f"{shares} time{'s' * (shares != 1)}"
    away = notice["away"]
    return f"{ranks} of {of} ranks train on, a step takes up to {times} as long; away: {away}"


def _on(node: int, job: Job) -> str:
    host = job.hosts.get(node, "")
    return f" ({host})" if host else ""

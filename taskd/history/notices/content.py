"""Makes notices from the entries of a job's journal.

A notice is a small flat object of plain data, described in docs/monitoring.md. It says what
happened, never how the job is configured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from taskd.history.model import Job
from taskd.history.notices.slow_ranks import SlowRanks
from taskd.history.reading import Record

VERSION = 1
TEXT = 500  # characters of a text
LISTED = 10  # texts or ranks in a list

Notice = dict[str, Any]
Told = Iterator[tuple[str, Notice]]  # the event, and its fields


class Notices:
    """Follows the entries of one manager."""

    def __init__(self, name: str) -> None:
        """`name`: the job's."""
        self._name = _cut(name)
        self._slow = SlowRanks()

    def notices_of(self, record: Record, job: Job) -> list[Notice]:
        """The notices of an entry, which `job` has taken."""
        follow = _FOLLOW.get(record.kind)
        found = () if follow is None else follow(self, record, job)
        about = {"job": self._name, "time": record.time}
        return [{"version": VERSION, "event": event, **about, **more} for event, more in found]

    def _fault(self, record: Record, job: Job) -> Told:
        incident = job.open
        if incident is not None and len(incident.faults) == 1:
            yield (
                "incident",
                {
                    "state": "begun",
                    "incident": incident.number,
                    "began": incident.began,
                    "faults": [_cut(incident.faults[0])],
                },
            )

    def _over(self, record: Record, job: Job) -> Told:
        incident = job.incidents[-1]
        yield (
            "incident",
            {
                "state": "over",
                "incident": incident.number,
                "began": incident.began,
                "seconds": round(incident.seconds, 6),
                "result": incident.result,
                "strategy": incident.strategy,
                "faults": [_cut(text) for text in incident.faults[:LISTED]],
                "ranks": incident.ranks[:LISTED],
                "replaced": len(incident.replaced),
                "step": incident.step,
            },
        )

    def _lost(self, record: Record, job: Job) -> Told:
        yield "lost-node", {"node": record.step("node"), "why": _cut(record.text("why"))}

    def _resized(self, record: Record, job: Job) -> Told:
        if record.data.get("successor") is not True:  # else it is known
            ranks, of, shares = (record.count(name) for name in ("ranks", "of", "shares"))
            about = {"ranks": ranks, "of": of, "shares": shares}
            away = "" if job.shrunk is None else job.shrunk.who
            yield "elastic", {**about, "away": _cut(away)}

    def _end(self, record: Record, job: Job) -> Told:
        if job.end is not None:
            yield "end", {"ok": job.end.ok, "why": _cut(job.end.reason)}

    def _progress(self, record: Record, job: Job) -> Told:
        sample = job.samples[-1]
        slow = {rank: (node, seconds) for rank, node, seconds in sample.slow}
        for rank in self._slow.advance(slow):
            node, seconds = slow[rank]
            about = {"rank": rank, "node": node, "seconds": seconds}
            yield "slow-rank", {**about, "usual": sample.usual, "step": sample.step}

    def _waited_for(self, record: Record, job: Job) -> Told:
        if record.text("state") == "begun":
            about = {"rank": record.step("rank"), "since": record.step("since")}
            late, taken = record.number("late"), record.number("step")
            yield "slow-rank", {**about, "late": round(late, 6), "taken": round(taken, 6)}


_FOLLOW: dict[str, Callable[[Notices, Record, Job], Told]] = {
    "fault": Notices._fault,
    "incident": Notices._over,
    "lost": Notices._lost,
    "elastic": Notices._resized,
    "end": Notices._end,
    "progress": Notices._progress,
    "slow": Notices._waited_for,
}


def _cut(text: str) -> str:
    return text if len(text) <= TEXT else f"{text[:TEXT]}..."

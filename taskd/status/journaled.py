"""What the journal of a job says about it, for as long as no manager can be asked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from taskd.journal.phases import spent
from taskd.journal.reading import Record
from taskd.messages.to_operator import (
    LISTED,
    WORST,
    IncidentSeen,
    NodeSeen,
    Overview,
    RankSeen,
    incident_seen,
)
from taskd.status.model import SHOWN, UNDER_WAY, End, Model


@dataclass
class _Open:
    """An incident that was not over yet."""

    number: int
    began: float
    faults: list[str] = field(default_factory=list)
    phase: str = ""
    strategy: str = ""
    round: int = 0
    replaced: list[int] = field(default_factory=list)
    entered: list[tuple[str, float]] = field(default_factory=list)

    def seen(self, now: float) -> IncidentSeen:
        return incident_seen(
            {
                "incident": self.number,
                "began": self.began,
                "seconds": now - self.began,
                "strategy": self.strategy,
                "result": UNDER_WAY,
                "phase": self.phase,
                "round": self.round,
                "step": -1,
                "reached": -1,
                "ranks": sorted(set(self.replaced)),
                "faults": self.faults,
                "phases": spent(self.entered, now),
            }
        )


@dataclass
class _Job:
    """Follows a job record by record."""

    name: str = ""
    nodes: int = 0
    ranks: int = 0
    term: int = 0
    joined: set[int] = field(default_factory=set)
    lost: dict[int, str] = field(default_factory=dict)
    protected: bool = False
    paused: int | None = None
    repairs: bool = True
    progress: Record | None = None
    open: _Open | None = None
    incidents: list[IncidentSeen] = field(default_factory=list)
    seen: int = 0
    left: str = ""  # why the last manager left
    end: End | None = None
    time: float = 0.0

    def take(self, record: Record) -> None:
        self.time = max(self.time, record.time)
        follow = _FOLLOW.get(record.kind)
        if follow is not None:
            follow(self, record)

    def start(self, record: Record) -> None:
        if record.data.get("repeated") is True:
            return
        self.name = record.text("job")
        self.nodes = max(record.whole("nodes"), 0)
        self.ranks = self.nodes * max(record.whole("ranks_per_node"), 0)
        self.left, self.open = "", None  # the next manager opens another one
        if record.data.get("successor") is not True:
            self.protected, self.end, self.progress = False, None, None
            self.joined.clear()
            self.lost.clear()

    def charge(self, record: Record) -> None:
        self.term = max(record.whole("term"), 0)

    def join(self, record: Record) -> None:
        self.joined.add(record.whole("node", -1))
        self.lost.pop(record.whole("node", -1), None)

    def lose(self, record: Record) -> None:
        self.lost[record.whole("node", -1)] = record.text("why")

    def protect(self, record: Record) -> None:
        self.protected = True

    def restart(self, record: Record) -> None:
        self.protected, self.open = False, None

    def pause(self, record: Record) -> None:
        self.paused = record.whole("step")

    def resume(self, record: Record) -> None:
        self.paused = None

    def switch(self, record: Record) -> None:
        self.repairs = record.data.get("on") is not False

    def advance(self, record: Record) -> None:
        self.progress = record

    def _incident(self, record: Record) -> _Open:
        number = max(record.whole("incident"), 0)
        if self.open is None or self.open.number != number:
            began = record.number("began", record.time)
            self.open = _Open(number, max(began, 0.0))
        return self.open

    def fault(self, record: Record) -> None:
        self._incident(record).faults.append(record.text("text")[:1000])

    def phase(self, record: Record) -> None:
        incident = self._incident(record)
        incident.phase = record.text("phase")
        incident.strategy = record.text("strategy")
        incident.round = max(record.whole("round"), 0)
        incident.entered.append((incident.phase, record.time))
        if incident.phase == "CLOSED":
            self.open = None

    def replace(self, record: Record) -> None:
        if self.open is not None:
            self.open.replaced.append(record.whole("rank"))

    def incident(self, record: Record) -> None:
        self.open = None
        self.seen += 1
        self.incidents = [*self.incidents[-SHOWN:], _over(record)]

    def leave(self, record: Record) -> None:
        self.left = record.text("why")

    def finish(self, record: Record) -> None:
        self.open = None
        self.end = End(record.data.get("ok") is True, record.text("reason"), record.time)


_FOLLOW = {
    "start": _Job.start,
    "charge": _Job.charge,
    "join": _Job.join,
    "lost": _Job.lose,
    "protected": _Job.protect,
    "restart": _Job.restart,
    "pause": _Job.pause,
    "continue": _Job.resume,
    "recovery": _Job.switch,
    "progress": _Job.advance,
    "fault": _Job.fault,
    "phase": _Job.phase,
    "replace": _Job.replace,
    "incident": _Job.incident,
    "leave": _Job.leave,
    "end": _Job.finish,
}


def of_journal(where: str, records: Iterable[Record], now: float) -> Model | None:
    """The model of a job by the records of its last run; `now` is Unix time. None for no record."""
    job, any_record = _Job(), False
    for record in records:
        any_record = True
        job.take(record)
    if not any_record:
        return None
    incidents = list(job.incidents)
    if job.open is not None:
        incidents.append(job.open.seen(job.time))
    return Model(
        source="journal",
        where=where,
        age=max(now - job.time, 0.0),
        seen=_overview(job),
        incidents=tuple(incidents[-SHOWN:]),
        more=job.seen + (job.open is not None),
        end=job.end,
    )


def _overview(job: _Job) -> Overview:
    last = job.progress or Record("progress", 0.0)
    missing = [n for n in range(min(job.nodes, 100_000)) if n not in job.joined | job.lost.keys()]
    troubled = [(n, f"lost: {why}") for n, why in sorted(job.lost.items())]
    troubled += [(n, "has not joined") for n in missing]
    state, detail = _state(job)
    phases = {
        str(name): count
        for name, count in last.table("phases").items()
        if type(count) is int and count >= 0
    }
    return Overview(
        request="",
        job=job.name,
        time=job.time,
        state=state,
        detail=detail,
        nodes=job.nodes,
        ranks=job.ranks,
        generation=0,
        term=job.term,
        repairs=job.repairs,
        step=last.whole("step", -1),
        highest=last.whole("highest", -1),
        total=max(last.whole("total"), 0),
        rate=max(last.number("rate"), 0.0),
        usual=max(last.number("usual"), 0.0),
        heard=max(last.number("heard"), 0.0),
        phases=phases,
        listed=tuple(_slow(last))[:LISTED],
        troubled=tuple(NodeSeen(n, text) for n, text in troubled[:WORST]),
        troubles=len(troubled),
        standbys=0,
        incidents=(),
        incidents_seen=job.seen,
    )


def _state(job: _Job) -> tuple[str, str]:
    if job.end is not None:
        return "over", f"ended {'well' if job.end.ok else 'with an error'}: {job.end.reason}"
    if job.open is not None:
        doing = f"incident {job.open.number} was being repaired: {job.open.phase}"
    elif job.paused is not None:
        doing = f"it was paused before step {job.paused}"
    elif job.protected:
        doing = "it was training"
    else:
        doing = "it was starting"
    left = f" (the manager left: {job.left})" if job.left else ""
    return "silent", f"no manager answers{left}; by its last entry {doing}"


def _slow(last: Record) -> Iterable[RankSeen]:
    for row in last.several("slow"):
        if not isinstance(row, list) or [type(x) for x in row[:2]] != [int, int] or len(row) != 3:
            continue
        if type(row[2]) in (int, float) and min(row) >= 0:
            step = max(last.whole("step"), 0)
            yield RankSeen(row[0], row[1], step, "", float(row[2]), True)


def _over(record: Record) -> IncidentSeen:
    faults = [f for f in record.several("faults") if isinstance(f, str)]
    ranks = [r for r in record.several("ranks") if type(r) is int and r >= 0]
    phases: dict[str, float] = {
        str(name): float(seconds)
        for name, seconds in record.table("phases").items()
        if type(seconds) in (int, float) and seconds >= 0
    }
    return incident_seen(
        {
            "incident": max(record.whole("incident"), 0),
            "began": record.number("began", record.time),
            "seconds": record.number("seconds"),
            "strategy": record.text("strategy"),
            "result": record.text("result"),
            "step": max(record.whole("step", -1), -1),
            "reached": max(record.whole("reached", -1), -1),
            "ranks": ranks,
            "faults": faults,
            "phases": phases,
        }
    )

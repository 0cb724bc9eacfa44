"""The one model of a job's history: a fold over its journal, of which status, report, metrics and
notices are views.

A journal may have 128 MiB, come from another version of taskd, or be edited: unneeded data is
dropped at once, missing or malformed fields are tolerated, and entries of unknown kinds are
skipped.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from taskd.history.facts import (
    FAULTS,
    TEXT,
    Death,
    End,
    Incident,
    Line,
    Manager,
    Pause,
    Places,
    Processes,
    Sample,
    Shrunk,
    began,
    sentence,
    texts,
)
from taskd.history.goodput import INCIDENT, PAUSED, STARTING, TRAINING, Spent
from taskd.history.reading import FAR, Record
from taskd.history.slow_times import SlowTimes

T = TypeVar("T")
LINES = 200  # of an incident, and of the job outside of incidents
ENTERED, DEATHS = 1000, 20  # of an incident
SAID = {  # what is a line of its own
    "note", "decision", "replace", "kill", "refused", "lost", "fenced", "takeover", "prepare",
    "stand-down", "move", "separated", "released", "restart", "recovery", "charge", "start",
    "leave", "join", "pause", "continue", "gap", "fault", "end", "elastic",
}  # fmt: skip


@dataclass
class Job:
    """Follows a job record by record; a fresh start of the job discards everything before.

    `most`: how many of the newest incidents, samples and the like are kept. `read_round`: converts
    a round of an incident, as written, to the form kept; None is dropped.

    `began`, `last`: the first and the last entry, Unix times. `protected`: when every rank was in
    its loop, after each start; `in_loop`: they are. `paused`: from, to. `shrunk`: some ranks are
    away; `shrunken`: when that has been so. `slow`: when the others waited for slow ranks.
    `processes`: of each node. `preparing`: node -> the standby that prepares for it.
    `separated`: device -> fault code. `settings`: those that are set. `about`: of each node, what
    it runs on and with. `left`: why the last manager left. `closed`: incidents that are over, also
    those that are not kept."""

    most: int = sys.maxsize
    read_round: Callable[[Any], Any] = lambda told: None
    records: int = 0  # that were taken
    name: str = ""
    version: str = ""
    nodes: int = 0
    per_node: int = 0
    ladder: tuple[str, ...] = ()
    began: float = 0.0
    last: float = 0.0
    missing_start: bool = False  # its oldest files are gone
    managers: int = 0
    manager: Manager = Manager()  # the last one
    term: int = 0
    left: str = ""
    gaps: int = 0
    repairs: bool = True
    in_loop: bool = False
    protected: list[float] = field(default_factory=list)
    pause: Pause | None = None
    paused: list[tuple[float, float]] = field(default_factory=list)
    shrunk: Shrunk | None = None
    shrunken: list[Shrunk] = field(default_factory=list)
    slow: SlowTimes = field(init=False)
    processes: dict[int, Processes] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    open: Incident | None = None
    incidents: list[Incident] = field(default_factory=list)
    closed: int = 0
    lines: list[Line] = field(default_factory=list)  # outside of incidents
    unsaid: int = 0
    joined: dict[int, tuple[int, int]] = field(default_factory=dict)  # node -> first rank, count
    hosts: dict[int, str] = field(default_factory=dict)
    lost: dict[int, str] = field(default_factory=dict)
    preparing: dict[int, str] = field(default_factory=dict)
    separated: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    about: dict[int, dict[str, str]] = field(default_factory=dict)
    deaths: list[Death] = field(default_factory=list)  # outside of incidents
    end: End | None = None
    spent: Spent = field(default_factory=Spent)
    _places: Places | None = None
    _gone: set[int] = field(default_factory=set)  # nodes lost since the last incident was over

    def __post_init__(self) -> None:
        self.slow = SlowTimes(self.most)

    def add(self, record: Record) -> None:
        if not 0 <= record.time < FAR:
            return
        again = record.data.get("repeated") is True
        fresh = not again and record.kind == "start" and record.data.get("successor") is not True
        if fresh:
            vars(self).update(vars(Job(self.most, self.read_round)))
        if not self.records:
            self.began = self.spent.time = record.time
            # it ran before; its next manager opens an incident of its own
            self.missing_start = self.in_loop = not fresh
        self.records += 1
        self.until(record.time)
        self.last = max(self.last, record.time)
        follow = _FOLLOW.get(record.kind)
        if follow is not None:
            follow(self, record)
        if record.kind in SAID and not again:
            self._say(record)

    def until(self, time: float) -> None:
        """Account for time that passed without an entry."""
        if self.records and self.end is None:
            self.spent.slow = self.slow.share
            self.spent.until(time, self.activity)

    def finish(self) -> None:
        """The journal ends here: whatever is under way has lasted until its last entry."""
        self._cut(self.last)
        self._end_pause(self.last)
        if self.shrunk is not None:
            self._keep(self.shrunken, replace(self.shrunk, until=self.last))
        self.slow.set({}, self.last)

    @property
    def ranks(self) -> int:
        return self.nodes * self.per_node

    @property
    def activity(self) -> str:
        """The current activity, one of goodput.KINDS."""
        if not self.in_loop:
            return STARTING
        if self.open is not None:
            return INCIDENT
        return PAUSED if self.pause is not None else TRAINING

    @property
    def places(self) -> Places:
        if self._places is None:
            rows = sorted((first, node, count) for node, (first, count) in self.joined.items())
            firsts, nodes, counts = zip(*rows, strict=True) if rows else ((), (), ())
            self._places = Places(firsts, nodes, counts, self.per_node)
        return self._places

    @property
    def away(self) -> set[int]:
        """The nodes of which all ranks are away."""
        return self.places.whole(self.shrunk.missing) if self.shrunk is not None else set()

    def _keep(self, kept: list[T], item: T) -> None:
        kept.append(item)
        if len(kept) > self.most:
            del kept[0]

    # -- the job -----------------------------------------------------------------------------------

    def _start(self, record: Record) -> None:
        self.name, self.version = record.text("job"), record.text("taskd")
        self.nodes, self.per_node = record.count("nodes"), record.count("ranks_per_node")
        self.ladder = tuple(s for s in record.several("ladder") if isinstance(s, str))
        self.settings = texts(record.table("settings"))
        self._places = None
        if record.data.get("repeated") is not True:
            self.managers += 1
            self.manager = Manager.of(record)
            self.left = ""
            self.slow.set({}, record.time)  # the next manager will find them again
            self._cut(record.time)  # the next manager opens another one

    def _charge(self, record: Record) -> None:
        self.term = record.count("term")

    def _leave(self, record: Record) -> None:
        self.left = record.text("why")[:TEXT]

    def _gap(self, record: Record) -> None:
        self.gaps += record.count("lost")

    def _join(self, record: Record) -> None:
        if (node := record.step("node")) >= 0:
            self.joined[node] = record.count("first"), record.count("ranks")
            self._places = None
            self.about[node] = texts(record.table("about"))
            if self.hosts.get(node) != (address := record.text("address")[:100]):
                if self.open is not None or self.incidents:
                    self.hosts = dict(self.hosts)  # theirs stays as it was
                self.hosts[node] = address
            self.lost.pop(node, None)
            self.preparing.pop(node, None)

    def _lose(self, record: Record) -> None:
        if (node := record.step("node")) >= 0:
            self.lost[node] = record.text("why")[:TEXT]
            self._gone.add(node)

    def _prepare(self, record: Record) -> None:
        if (node := record.step("node")) >= 0:
            self.preparing[node] = record.text("agent")[:100]

    def _stand_down(self, record: Record) -> None:
        self.preparing.pop(record.step("node"), None)

    def _protect(self, record: Record) -> None:
        if not self.protected and not self.missing_start:
            self.spent.begin()
        self._keep(self.protected, record.time)
        self.in_loop = True

    def _restart(self, record: Record) -> None:
        self._cut(record.time)
        self._end_pause(record.time)
        self._resize(None, record.time)
        self.slow.set({}, record.time)
        self.in_loop = False
        self.preparing.clear()
        self.spent.restart()

    def _pause(self, record: Record) -> None:
        if self.pause is None or self.pause.moving:
            moving = record.data.get("moving") is True
            self.pause = Pause(record.time, record.step("step"), moving)

    def _continue(self, record: Record) -> None:
        self._end_pause(record.time)

    def _end_pause(self, now: float) -> None:
        # for the move of a node all ranks pause too: that time is its incident's
        if self.pause is not None and not self.pause.moving:
            self._keep(self.paused, (self.pause.since, now))
        self.pause = None

    def _elastic(self, record: Record) -> None:
        self._resize(Shrunk.of_record(record), record.time)

    def _resize(self, shrunk: Shrunk | None, now: float) -> None:
        """So many ranks train from now on. The next manager may say once more what is known."""
        before = self.shrunk
        if before is not None and (shrunk is None or not shrunk.same(before)):
            self._keep(self.shrunken, replace(before, until=max(now, before.since)))
            before = None
        self.shrunk = before or shrunk
        self.spent.shares = 1 if self.shrunk is None else self.shrunk.shares

    def _slow(self, record: Record) -> None:
        least = max([0.0, *(i.ended for i in self.incidents[-1:]), *self.protected[-1:]])
        self.spent.slower(self.slow.told(record, least), self.slow.share)

    def _processes(self, record: Record) -> None:
        if (found := Processes.of(record)) is not None:
            self.processes[record.step("node")] = found

    def _recovery(self, record: Record) -> None:
        self.repairs = record.data.get("on") is not False

    def _progress(self, record: Record) -> None:
        self._keep(self.samples, sample := Sample.of(record))
        self.spent.progress(sample.step, sample.usual)

    def _separate(self, record: Record) -> None:
        self.separated[record.text("device")[:100]] = record.text("code")[:100]

    def _release(self, record: Record) -> None:
        self.separated.pop(record.text("device")[:100], None)

    def _finish(self, record: Record) -> None:
        self._cut(record.time)
        self._resize(None, record.time)
        self.slow.set({}, record.time)
        ok, reason = record.data.get("ok") is True, record.text("reason")[:4000]
        self.end = End(ok, reason, record.time, record.text("ending")[:100])

    # -- incidents ---------------------------------------------------------------------------------

    def _fault(self, record: Record) -> None:
        number = record.count("incident")
        if self.open is None or self.open.number != number:
            since = began(record)
            if self.open is None:
                over = self.incidents[-1].ended if self.incidents else 0.0
                self.spent.late(record.time - max(since, over), self.activity)
            self._cut(record.time)
            self.open = Incident(number, since, self._usual(), self.hosts)
            self.open.deaths = [death for death in self.deaths if death.at >= since]
            self.deaths = [death for death in self.deaths if death.at < since]
        if len(self.open.faults) < FAULTS:
            self.open.faults.append(record.text("text")[:TEXT])

    def _death(self, record: Record) -> None:
        if self.open is None:
            self.deaths = [*self.deaths[1 - DEATHS :], Death.of(record)]
        elif len(self.open.deaths) < DEATHS:
            self.open.deaths.append(Death.of(record))

    def _phase(self, record: Record) -> None:
        if self.open is not None:
            self.open.strategy = record.text("strategy")
            if len(self.open.entered) < ENTERED:
                entry = record.count("round"), record.text("phase"), record.time
                self.open.entered.append(entry)

    def _decision(self, record: Record) -> None:
        if self.open is not None:
            self.open.strategy = record.text("strategy")

    def _replace(self, record: Record) -> None:
        if self.open is not None:
            self.open.replaced.add(record.count("rank"))

    def _incident(self, record: Record) -> None:
        """The incident is over, and the entry describes all of it."""
        incident, self.open = self.open, None
        if incident is None or incident.number != record.count("incident"):
            incident = Incident(0, 0.0, self._usual(), self.hosts)
        elif (earlier := incident.began - began(record)) > 0:  # the ranks have reported more since
            self.spent.late(earlier, TRAINING)
        incident.tell(record, self.read_round)
        incident.lost, self._gone = self._gone, set()
        self._keep(self.incidents, incident)
        self.closed += 1
        self.spent.repeat(incident.step, incident.reached)

    def _cut(self, now: float) -> None:
        """The incident has no end in the journal, or none yet: its manager was gone before."""
        if self.open is not None:
            self.open.cut(now)
            self._keep(self.incidents, self.open)
            self.open = None

    def _usual(self) -> float:
        """Seconds of a step, according to the last report."""
        for sample in reversed(self.samples[-20:]):
            if sample.rate > 0:
                return 60.0 / sample.rate
            if sample.usual > 0:
                return sample.usual
        return 0.0

    def _say(self, record: Record) -> None:
        to = self.open or self
        if len(to.lines) < LINES:
            to.lines.append(Line(record.time, record.kind, sentence(record)[:TEXT]))
        else:
            to.unsaid += 1


def of_records(records: Iterable[Record], **made: Any) -> Job | None:
    """The job's last run; None for no record at all. `made`: arguments of Job."""
    job = Job(**made)
    for record in records:
        job.add(record)
    return job if job.records else None


_FOLLOW: dict[str, Callable[[Job, Record], None]] = {
    "start": Job._start,
    "charge": Job._charge,
    "leave": Job._leave,
    "gap": Job._gap,
    "join": Job._join,
    "lost": Job._lose,
    "prepare": Job._prepare,
    "stand-down": Job._stand_down,
    "protected": Job._protect,
    "restart": Job._restart,
    "pause": Job._pause,
    "continue": Job._continue,
    "elastic": Job._elastic,
    "recovery": Job._recovery,
    "progress": Job._progress,
    "slow": Job._slow,
    "processes": Job._processes,
    "separated": Job._separate,
    "released": Job._release,
    "end": Job._finish,
    "death": Job._death,
    "fault": Job._fault,
    "phase": Job._phase,
    "decision": Job._decision,
    "replace": Job._replace,
    "incident": Job._incident,
}

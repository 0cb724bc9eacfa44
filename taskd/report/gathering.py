"""Follows a journal, entry by entry, and keeps of it what a report needs.

A journal may have 128 MiB: what is not needed is dropped at once. Whatever an entry lacks or holds
is tolerated; an entry of an unknown kind is not looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from taskd.journal.phases import spent
from taskd.journal.reading import Record
from taskd.report import rounds
from taskd.report.story import OPEN, REPAIRED, Incident, Line, Places, Sample, Story

LINES = 200  # of an incident, and of the job outside of incidents
TEXT = 1000  # characters of a line
FAR = 1e10  # Unix times and seconds beyond it are no times, and numbers no ranks
SAID = {  # what is a line of its own; the text is the first of these fields that is there
    "note", "decision", "replace", "kill", "refused", "lost", "fenced", "takeover", "prepare",
    "stand-down", "move", "separated", "released", "restart", "recovery", "charge", "start",
    "leave", "join", "pause", "continue", "gap", "fault", "end",
}  # fmt: skip


def of_records(records: Iterable[Record]) -> Story | None:
    """The story of the job's last run; None for no record at all."""
    gathered = _Gathered()
    for record in records:
        gathered.take(record)
    return gathered.finish() if gathered.any else None


@dataclass
class _Open:
    """An incident that is not over yet."""

    number: int
    began: float
    usual: float
    hosts: dict[int, str]
    faults: list[str] = field(default_factory=list)
    strategy: str = ""
    ranks: set[int] = field(default_factory=set)
    entered: list[tuple[int, str, float]] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    unsaid: int = 0


@dataclass
class _Gathered:
    story: Story = field(default_factory=Story)
    any: bool = False
    open: _Open | None = None
    pausing: float | None = None
    joined: dict[int, tuple[int, int]] = field(default_factory=dict)  # node -> first rank, count
    per_node: int = 0

    def take(self, record: Record) -> None:
        if not 0 <= record.time < FAR:
            return
        if record.kind == "start":
            if record.data.get("repeated") is not True and record.data.get("successor") is not True:
                self.__init__()  # type: ignore[misc]
            elif not self.any:
                self.story.missing_start = True
        if not self.any:
            self.story.began, self.any = record.time, True
            self.story.missing_start |= record.kind != "start"
        self.story.last = max(self.story.last, record.time)
        follow = _FOLLOW.get(record.kind)
        if follow is not None:
            follow(self, record)
        if record.kind in SAID and record.data.get("repeated") is not True:
            self._say(record)

    def finish(self) -> Story:
        story = self.story
        if self.open is not None:
            self._cut(story.last)
        if self.pausing is not None:
            story.paused.append((self.pausing, story.last))
        rows = sorted((first, node, count) for node, (first, count) in self.joined.items())
        firsts, nodes, counts = zip(*rows, strict=True) if rows else ((), (), ())
        story.places = Places(firsts, nodes, counts, self.per_node)
        return story

    # -- the job -----------------------------------------------------------------------------------

    def start(self, record: Record) -> None:
        story = self.story
        story.job, story.version = record.text("job"), record.text("taskd")
        story.nodes = _rank(record, "nodes")
        self.per_node = _rank(record, "ranks_per_node")
        story.ranks = story.nodes * self.per_node
        story.ladder = tuple(s for s in record.several("ladder") if isinstance(s, str))
        if record.data.get("repeated") is not True:
            story.managers += 1
            story.left = ""
            if self.open is not None:  # the next manager opens another one
                self._cut(record.time)

    def join(self, record: Record) -> None:
        node = record.whole("node", -1)
        if 0 <= node < FAR:
            self.joined[node] = _rank(record, "first"), _rank(record, "ranks")
            self.story.hosts[node] = record.text("address")[:100]
            self.story.lost.pop(node, None)

    def lose(self, record: Record) -> None:
        self.story.lost[record.whole("node", -1)] = record.text("why")[:TEXT]

    def protect(self, record: Record) -> None:
        self.story.protected.append(record.time)

    def restart(self, record: Record) -> None:
        self.story.restarts.append(Line(record.time, "restart", record.text("why")[:TEXT]))

    def pause(self, record: Record) -> None:
        # for the move of a node all ranks pause too: that time is its incident's
        if self.pausing is None and record.data.get("moving") is not True:
            self.pausing = record.time

    def resume(self, record: Record) -> None:
        if self.pausing is not None:
            self.story.paused.append((self.pausing, record.time))
            self.pausing = None

    def advance(self, record: Record) -> None:
        slow = tuple(
            (row[0], row[1], float(row[2]))
            for row in record.several("slow")
            if isinstance(row, list)
            and len(row) == 3
            and all(type(x) in (int, float) and 0 <= x < FAR for x in row)
            and type(row[0]) is type(row[1]) is int
        )
        step = _step(record, "step")
        self.story.total = max(_step(record, "total"), 0)
        self.story.samples.append(
            Sample(
                record.time,
                step,
                max(_step(record, "highest"), step),
                _seconds(record, "rate"),
                _seconds(record, "usual"),
                slow,
            )
        )

    def separate(self, record: Record) -> None:
        self.story.separated[record.text("device")[:100]] = record.text("code")[:100]

    def release(self, record: Record) -> None:
        self.story.separated.pop(record.text("device")[:100], None)

    def gap(self, record: Record) -> None:
        self.story.gaps += max(record.whole("lost"), 0)

    def leave(self, record: Record) -> None:
        self.story.left = record.text("why")[:TEXT]

    def end(self, record: Record) -> None:
        if self.open is not None:
            self._cut(record.time)
        ok, reason = record.data.get("ok") is True, record.text("reason")[:4000]
        self.story.end = ok, reason, record.time

    # -- incidents ---------------------------------------------------------------------------------

    def fault(self, record: Record) -> None:
        number = record.whole("incident")
        began = _began(record)
        if self.open is None or self.open.number != number:
            if self.open is not None:
                self._cut(record.time)
            self.open = _Open(number, began, self._usual(), dict(self.story.hosts))
        if len(self.open.faults) < 100:
            self.open.faults.append(record.text("text")[:TEXT])

    def phase(self, record: Record) -> None:
        if self.open is not None:
            self.open.strategy = record.text("strategy")
            entry = record.whole("round"), record.text("phase"), record.time
            if len(self.open.entered) < 1000:
                self.open.entered.append(entry)

    def replace(self, record: Record) -> None:
        if self.open is not None:
            self.open.ranks.add(_rank(record, "rank"))

    def incident(self, record: Record) -> None:
        known, self.open = self.open, None
        if known is None or known.number != record.whole("incident"):
            known = _Open(0, record.time, self._usual(), dict(self.story.hosts))
        told = [rounds.read(r) for r in record.several("rounds")]
        self.story.incidents.append(
            Incident(
                number=record.whole("incident"),
                began=_began(record),
                seconds=_seconds(record, "seconds"),
                result=record.text("result") or REPAIRED,
                strategy=record.text("strategy"),
                faults=tuple(_texts(record.several("faults"))) or tuple(known.faults),
                ranks=tuple(sorted(set(_ranks(record.several("ranks"))))),
                step=_step(record, "step"),
                reached=_step(record, "reached"),
                phases=_phases(record.table("phases")),
                tried=tuple(_texts(record.several("tried"))),
                rounds=tuple(r for r in told if r is not None),
                entered=tuple(known.entered),
                lines=tuple(known.lines),
                unsaid=known.unsaid,
                usual=known.usual,
                hosts=known.hosts,
            )
        )

    def _cut(self, now: float) -> None:
        """The incident has no end in the journal: its manager was gone before."""
        assert self.open is not None
        known, self.open = self.open, None
        self.story.incidents.append(
            Incident(
                number=known.number,
                began=known.began,
                seconds=max(now - known.began, 0.0),
                result=OPEN,
                strategy=known.strategy,
                faults=tuple(known.faults),
                ranks=tuple(sorted(known.ranks)),
                phases=spent([(phase, at) for _, phase, at in known.entered], now),
                entered=tuple(known.entered),
                lines=tuple(known.lines),
                unsaid=known.unsaid,
                usual=known.usual,
                hosts=known.hosts,
            )
        )

    def _usual(self) -> float:
        """Seconds of a step, by what was said last."""
        for sample in reversed(self.story.samples[-20:]):
            if sample.rate > 0:
                return 60.0 / sample.rate
            if sample.usual > 0:
                return sample.usual
        return 0.0

    def _say(self, record: Record) -> None:
        line = Line(record.time, record.kind, _sentence(record)[:TEXT])
        to = self.open or self.story
        if len(to.lines) < LINES:
            to.lines.append(line)
        else:
            to.unsaid += 1


def _sentence(record: Record) -> str:
    """An entry in words: what it is about, and why."""
    said = record.text("text") or record.text("why") or record.text("reason")
    named = [
        f"{name} {value}"
        for name in ("node", "rank", "device", "code", "term", "state", "strategy", "by")
        if isinstance(value := record.data.get(name), (int, str)) and value != ""
    ]
    over = [o for o in record.several("passed_over") if isinstance(o, str)]
    passed = f" (passed over: {'; '.join(over)})" if over else ""
    if record.kind in ("fault", "note", "end"):
        return said
    if record.kind == "start":
        took = record.data.get("successor") is True
        return "the next manager takes the job over" if took else "the job starts"
    return ": ".join(filter(None, (", ".join(named), said))) + passed


def _began(record: Record) -> float:
    """When an incident began: before it was written, and not before all times."""
    return max(min(record.number("began", record.time), record.time), 0.0)


def _seconds(record: Record, name: str) -> float:
    return min(max(record.number(name), 0.0), FAR)


def _rank(record: Record, name: str) -> int:
    """A rank, a node, or how many there are."""
    found = record.whole(name)
    return found if 0 <= found < FAR else 0


def _step(record: Record, name: str) -> int:
    found = record.whole(name, -1)
    return found if 0 <= found < 1e15 else -1


def _ranks(values: list[Any]) -> Iterable[int]:
    return (value for value in values if type(value) is int and 0 <= value < FAR)


def _texts(values: list[Any]) -> Iterable[str]:
    return (value[:TEXT] for value in values[:101] if isinstance(value, str))


def _phases(table: dict[str, Any]) -> dict[str, float]:
    return {
        name[:40]: float(seconds)
        for name, seconds in table.items()
        if type(seconds) in (int, float) and 0 <= seconds < FAR
    }


_FOLLOW: dict[str, Callable[[_Gathered, Record], None]] = {
    "start": _Gathered.start,
    "join": _Gathered.join,
    "lost": _Gathered.lose,
    "protected": _Gathered.protect,
    "restart": _Gathered.restart,
    "pause": _Gathered.pause,
    "continue": _Gathered.resume,
    "progress": _Gathered.advance,
    "separated": _Gathered.separate,
    "released": _Gathered.release,
    "gap": _Gathered.gap,
    "leave": _Gathered.leave,
    "end": _Gathered.end,
    "fault": _Gathered.fault,
    "phase": _Gathered.phase,
    "replace": _Gathered.replace,
    "incident": _Gathered.incident,
}

"""The facts in a job's journal: incidents, the ranks' progress, and log lines."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, islice
from typing import Any

from taskd.history.reading import FAR, Record

REPAIRED, RESTARTED, ENDED, OPEN = "repaired", "restarted", "ended", "not over"
TEXT = 1000  # characters of a line
SPANS = 10  # of ranks that are named
KINDS = 1000  # of durations of attempts
RANKS = 1_000_000  # more, or more shares of a step, is a journal that is wrong

SAID = {  # what is a line of its own
    "note", "decision", "replace", "kill", "refused", "lost", "fenced", "takeover", "prepare",
    "stand-down", "move", "separated", "released", "restart", "recovery", "charge", "start",
    "leave", "join", "pause", "continue", "gap", "fault", "end", "elastic",
}  # fmt: skip

Span = tuple[int, int, int]  # ranks: the first, the last, the distance between two


@dataclass(frozen=True)
class Manager:
    """Where a manager runs, or ran: machine, pid and port."""

    host: str = ""
    pid: int = 0
    port: int = 0


@dataclass(frozen=True)
class Line:
    """A log line. `at`: Unix time."""

    at: float
    kind: str
    text: str


@dataclass(frozen=True)
class Sample:
    """The ranks' progress at a Unix time: a `progress` entry. `rate`: steps a minute, `usual`:
    seconds of a step; `slow`: (rank, node, seconds of a step) of the slowest; `phases`: how many
    ranks were in each; `times`: (seconds, how many) of the attempts since the entry before."""

    at: float
    step: int = -1
    highest: int = -1
    total: int = 0
    rate: float = 0.0
    usual: float = 0.0
    heard: float = 0.0
    phases: dict[str, int] = field(default_factory=dict)
    slow: tuple[tuple[int, int, float], ...] = ()
    times: tuple[tuple[float, int], ...] = ()

    @classmethod
    def of(cls, record: Record) -> Sample:
        step = record.step("step")
        return cls(
            record.time,
            step,
            max(record.step("highest"), step),
            record.count("total"),
            record.seconds("rate"),
            record.seconds("usual"),
            record.seconds("heard"),
            {name[:40]: n for name, n in record.table("phases").items() if is_count(n)},
            tuple(_slow(record)),
            tuple(_times(record)),
        )


@dataclass(frozen=True)
class Places:
    """Which node has which ranks."""

    firsts: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()
    per_node: int = 0

    def of(self, rank: int) -> tuple[int, int]:
        """The node of a rank and its place on it; -1 for a node that is not known."""
        at = bisect_right(self.firsts, rank) - 1
        if at >= 0 and rank < self.firsts[at] + self.counts[at]:
            return self.nodes[at], rank - self.firsts[at]
        if self.per_node > 0:
            return rank // self.per_node, rank % self.per_node
        return -1, rank


@dataclass(frozen=True)
class Pause:
    """All ranks stop before `step`. `moving`: for the move of a node."""

    since: float
    step: int
    moving: bool


@dataclass(frozen=True)
class Shrunk:
    """Only `ranks` of `of` ranks train: those in `away` are away, and others stand in for them, so
    that a step takes up to `shares` times as long. `until`: Unix time, None while it is so."""

    since: float
    ranks: int
    of: int
    shares: int
    away: tuple[Span, ...] = ()
    until: float | None = None

    @classmethod
    def of_record(cls, record: Record) -> Shrunk | None:
        """By an entry `elastic`; None for all ranks."""
        ranks, of = record.count("ranks"), record.count("of")
        if not 0 < ranks < of:
            return None
        shares = min(max(record.count("shares"), 1), RANKS)
        return cls(record.time, ranks, of, shares, tuple(_spans(record.several("away"))))

    def same(self, other: Shrunk) -> bool:
        """Whether it is so at another time."""
        return (self.ranks, self.of, self.shares, self.away) == (
            other.ranks,
            other.of,
            other.shares,
            other.away,
        )

    @property
    def missing(self) -> set[int]:
        """The ranks that are away."""
        every = chain.from_iterable(range(a, b + 1, apart) for a, b, apart in self.away)
        return set(islice(every, RANKS))

    @property
    def who(self) -> str:
        return named(self.away, self.of - self.ranks)

    @property
    def words(self) -> str:
        return f"{self.ranks} of {self.of} ranks train, a step takes up to {self.times} as long"

    @property
    def times(self) -> str:
        return f"{self.shares} time{'s' * (self.shares != 1)}"


@dataclass(frozen=True)
class Processes:
    """The processes of a node's ranks: a `processes` entry. `devices`: () if all are CPUs."""

    ranks: tuple[int, ...] = ()
    pids: tuple[int, ...] = ()
    incarnations: tuple[int, ...] = ()
    devices: tuple[str, ...] = ()

    @classmethod
    def of(cls, record: Record) -> Processes:
        """Raises ValueError for an entry that makes no sense."""
        names = ("ranks", "pids", "incarnations")
        ranks, pids, incarnations = (tuple(record.several(name)) for name in names)
        devices = tuple(record.several("devices"))
        if not len(ranks) == len(pids) == len(incarnations) or len(devices) not in (0, len(ranks)):
            raise ValueError("lists of different lengths")
        if not all(map(is_count, (*ranks, *pids, *incarnations))):
            raise ValueError("not all are counts")
        return cls(ranks, pids, incarnations, tuple(str(device)[:100] for device in devices))


@dataclass(frozen=True)
class End:
    """How the job ended. `time`: Unix time. `ending`: "failed", "saved" or "hopeless"; "" if `ok`,
    and in journals of earlier versions."""

    ok: bool
    reason: str
    time: float
    ending: str = ""


def usual(samples: Sequence[Sample]) -> float:
    """Seconds of a step, according to the last report."""
    for sample in reversed(samples[-20:]):
        if sample.rate > 0:
            return 60.0 / sample.rate
        if sample.usual > 0:
            return sample.usual
    return 0.0


def sentence(record: Record) -> str:
    """An entry in words, with its reason."""
    said = record.text("text") or record.text("why") or record.text("reason")
    if record.kind in ("fault", "note", "end"):
        return said
    if record.kind == "start":
        took = record.data.get("successor") is True
        return "the next manager takes the job over" if took else "the job starts"
    if record.kind == "elastic":
        shrunk = Shrunk.of_record(record)
        return f"{shrunk.words}; away: {shrunk.who}" if shrunk is not None else "all ranks train"
    named = [
        f"{name} {value}"
        for name in ("node", "rank", "device", "code", "term", "state", "strategy", "by")
        if isinstance(value := record.data.get(name), (int, str)) and value != ""
    ]
    over = [o for o in record.several("passed_over") if isinstance(o, str)]
    passed = f" (passed over: {'; '.join(over)})" if over else ""
    return ": ".join(filter(None, (", ".join(named), said))) + passed


def _slow(record: Record) -> Iterator[tuple[int, int, float]]:
    for row in record.several("slow"):
        if isinstance(row, list | tuple) and len(row) == 3:
            rank, node, seconds = row
            known = type(seconds) in (int, float) and 0 <= seconds < FAR
            if is_count(rank) and is_count(node) and known:
                yield rank, node, float(seconds)


def _times(record: Record) -> Iterator[tuple[float, int]]:
    for row in record.several("times")[:KINDS]:
        if isinstance(row, list | tuple) and len(row) == 2 and is_count(row[1]):
            seconds, count = row
            if type(seconds) in (int, float) and 0 < seconds < FAR:
                yield _pair(float(seconds), count)


@lru_cache(1 << 16)
def _pair(seconds: float, count: int) -> tuple[float, int]:
    """One for all samples: a journal has millions."""
    return seconds, count


def _spans(told: list[Any]) -> Iterator[Span]:
    for row in told:
        if isinstance(row, list | tuple) and len(row) == 3 and all(map(is_count, row)):
            first, last, apart = row
            if first <= last and apart > 0:
                yield first, last, apart


def named(spans: Sequence[Span], count: int) -> str:
    """The ranks of the first spans, and how many of `count` others there are."""
    said, listed = [], 0
    for first, last, apart in spans[:SPANS]:
        step = f" by {apart}" if apart > 1 else ""
        said.append(str(first) if first == last else f"{first}-{last}{step}")
        listed += (last - first) // apart + 1
    more = f" and {count - listed} more" if count > listed else ""
    return f"rank{'s' * (count != 1)} {', '.join(said)}{more}" if said else f"{count} ranks"


def began(record: Record) -> float:
    """When an incident began, clamped to [0, time of the entry]."""
    return max(min(record.number("began", record.time), record.time), 0.0)


def texts(table: dict[str, Any]) -> dict[str, str]:
    """Texts and whole numbers by their names, as texts."""
    known = {n: str(v) for n, v in table.items() if isinstance(v, str) or type(v) is int}
    return {name[:100]: known[name][:TEXT] for name in list(known)[:1000]}


def span(seconds: float) -> str:
    """A duration, in two units at most."""
    if seconds < 0.9995:
        return f"{seconds * 1e3:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s" if whole % 60 else f"{whole // 60} min"
    minutes = round(seconds / 60)
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60} min" if minutes % 60 else f"{minutes // 60} h"
    hours = round(seconds / 3600)
    return f"{hours // 24} d {hours % 24} h" if hours % 24 else f"{hours // 24} d"


def is_count(value: Any) -> bool:
    """Whether it may be a rank, a node, or how many there are."""
    return type(value) is int and 0 <= value < FAR

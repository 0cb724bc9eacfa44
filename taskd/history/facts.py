"""The facts in a job's journal: incidents, the ranks' progress, and log lines."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, islice
from typing import Any

from taskd.history.reading import FAR, Record

REPAIRED, RESTARTED, ENDED, OPEN = "repaired", "restarted", "ended", "not over"
TEXT = 1000  # characters of a line
FAULTS = 100  # of an incident
TRACEBACK = 20_000  # characters of a traceback
SPANS = 10  # of ranks that are named
KINDS = 1000  # of durations of attempts
RANKS = 1_000_000  # more, or more shares of a step, is a journal that is wrong

Span = tuple[int, int, int]  # ranks: the first, the last, the distance between two


@dataclass(frozen=True)
class Manager:
    """Where a manager runs, or ran: machine, pid and port."""

    host: str = ""
    pid: int = 0
    port: int = 0

    @classmethod
    def of(cls, record: Record) -> Manager:
        """By its entry `start`."""
        return cls(record.text("machine")[:253], record.count("pid"), record.count("port"))


@dataclass(frozen=True)
class Line:
    """A log line. `at`: Unix time."""

    at: float
    kind: str
    text: str


@dataclass(frozen=True)
class Death:
    """How a rank's process ended: a `death` entry. `at`: Unix time; `traceback`: of the exception
    `raised`, or where its threads were when it hung; "" for none."""

    at: float
    rank: int
    node: int
    pid: int
    cause: str
    raised: str
    traceback: str

    @classmethod
    def of(cls, record: Record) -> Death:
        return cls(
            record.time,
            record.step("rank"),
            record.step("node"),
            record.count("pid"),
            record.text("cause")[:TEXT],
            record.text("raised")[:TEXT],
            record.text("traceback")[:TRACEBACK],
        )


@dataclass
class Incident:
    """A fault and all that was done about it. `began`: Unix time; `seconds` and `phases`: seconds;
    for an unfinished incident, up to when it was cut. `entered`: the phases in order, as (round,
    phase, Unix time). `replaced`: ranks; `lost`: nodes. `usual`: seconds of a step before it, 0 if
    not known. `hosts`: the addresses of the nodes' machines when it began. `rounds`: the results of
    Job.read_round."""

    number: int
    began: float
    usual: float = 0.0
    hosts: dict[int, str] = field(default_factory=dict)
    seconds: float = 0.0
    result: str = OPEN
    strategy: str = ""
    faults: list[str] = field(default_factory=list)
    replaced: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)
    step: int = -1
    reached: int = -1
    phases: dict[str, float] = field(default_factory=dict)
    tried: list[str] = field(default_factory=list)
    rounds: list[Any] = field(default_factory=list)
    entered: list[tuple[int, str, float]] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    deaths: list[Death] = field(default_factory=list)
    unsaid: int = 0  # lines that are left out

    @property
    def ended(self) -> float:
        return self.began + self.seconds

    @property
    def ranks(self) -> list[int]:
        """The replaced ranks, in order."""
        return sorted(self.replaced)

    def tell(self, record: Record, read_round: Callable[[Any], Any]) -> None:
        """It is over, and the entry describes all of it."""
        self.number, self.began = record.count("incident"), began(record)
        self.seconds = record.seconds("seconds")
        self.result = record.text("result") or REPAIRED
        self.strategy = record.text("strategy")
        self.faults = list(_lines(record.several("faults"))) or self.faults
        self.replaced = {rank for rank in record.several("ranks") if is_count(rank)}
        self.step, self.reached = record.step("step"), record.step("reached")
        self.phases = {
            name[:40]: float(seconds)
            for name, seconds in record.table("phases").items()
            if type(seconds) in (int, float) and 0 <= seconds < FAR
        }
        self.tried = list(_lines(record.several("tried")))
        rounds = map(read_round, record.several("rounds"))
        self.rounds = [told for told in rounds if told is not None]

    def cut(self, now: float) -> None:
        """Cut the incident, which is not over, at `now`."""
        self.seconds = max(now - self.began, 0.0)
        noticed = self.entered[0][2] if self.entered else now
        self.phases = {"DETECT": max(noticed - self.began, 0.0)}
        ends = [*(at for _, _, at in self.entered[1:]), now]
        for (_, phase, begin), end in zip(self.entered, ends, strict=False):
            self.phases[phase] = self.phases.get(phase, 0.0) + max(end - begin, 0.0)


@dataclass(frozen=True)
class Sample:
    """The ranks' progress at a Unix time: a `progress` entry. `rate`: steps a minute, `usual`:
    seconds of a step; `slow`: (rank, node, seconds of a step) of the slowest; `phases`: how many
    ranks were in each; `times`: (seconds, how many) of the attempts since the entry before;
    `memory`: bytes that the records of a node take at most."""

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
    memory: int = 0

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
            record.count("memory"),
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

    def whole(self, ranks: Iterable[int]) -> set[int]:
        """The nodes of which all ranks are among these."""
        size = dict(zip(self.nodes, self.counts, strict=True))
        found = Counter(self.of(rank)[0] for rank in ranks)
        return {n for n, some in found.items() if n >= 0 and some == (size.get(n) or self.per_node)}


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
    def of(cls, record: Record) -> Processes | None:
        """None for an entry that makes no sense."""
        names = ("ranks", "pids", "incarnations")
        ranks, pids, incarnations = (tuple(record.several(name)) for name in names)
        devices = tuple(str(device)[:100] for device in record.several("devices"))
        if not len(ranks) == len(pids) == len(incarnations) or len(devices) not in (0, len(ranks)):
            return None
        known = all(map(is_count, (*ranks, *pids, *incarnations))) and record.step("node") >= 0
        return cls(ranks, pids, incarnations, devices) if known else None


@dataclass(frozen=True)
class End:
    """How the job ended. `time`: Unix time. `ending`: "failed", "saved" or "useless"; "" if `ok`,
    and in journals of earlier versions."""

    ok: bool
    reason: str
    time: float
    ending: str = ""


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


def rate(steps: float) -> str:
    """Steps per minute, in words."""
    return f"{steps:,.{0 if steps >= 100 else 1}f} steps/min"


def is_count(value: Any) -> bool:
    """Whether it may be a rank, a node, or how many there are."""
    return type(value) is int and 0 <= value < FAR


def _lines(values: list[Any]) -> Iterator[str]:
    return (value[:TEXT] for value in values[: FAULTS + 1] if isinstance(value, str))

"""The account of a job: its history with all figures."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from taskd.history.facts import Incident
from taskd.history.log_files import Told
from taskd.history.model import Job, of_records
from taskd.history.reading import Record
from taskd.history.report import figures, rounds, step_times
from taskd.history.report.causes import Fault, fault, growth, to_blame
from taskd.history.report.figures import Assumptions, Cost, Interval, Slowed, Times
from taskd.history.report.step_times import StepTimes

BINS = 600  # of the timeline, at most
LEAST = 1.0  # seconds of a bin at least
RANKED = 100  # slow ranks, at most


Timed = TypeVar("Timed", Interval, Slowed)


@dataclass(frozen=True)
class Count:
    """How often something was at fault, and the cost of these incidents."""

    name: str
    incidents: tuple[int, ...]  # their numbers in the report, from 1
    lost_seconds: float
    mtbf_seconds: float | None


@dataclass(frozen=True)
class Now:
    """The answer of a running job's manager. `rate`: steps per minute, 0 if unknown."""

    state: str
    detail: str
    step: int
    rate: float


@dataclass(frozen=True)
class Slow:
    """A rank that took longer than the others. `ratio`: the most, of the median rank's time;
    `seen`: in how many samples; `at`: (Unix time, ratio) of each."""

    rank: int
    node: int
    ratio: float
    seen: int
    at: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Account:
    """`now`: None if no manager was asked or has answered. `bins`: (begin, goodput) of equal pieces
    of the time from the first entry to the last, None before anything was observed. `rates`: (from,
    to, new steps a minute) between two entries about progress. `logs`: around incidents, by their
    places in the job's."""

    job: Job
    assumed: Assumptions
    now: Now | None
    costs: tuple[Cost, ...]
    faults: tuple[tuple[Fault, ...], ...]  # of each incident
    span: Interval
    start: float | None
    lost: tuple[Interval, ...]
    paused: tuple[Interval, ...]
    slowed: tuple[Slowed, ...]
    shrunk: tuple[Slowed, ...]
    goodput: float | None
    mttr: Times | None
    strategies: dict[str, Times]
    mtbf: float | None
    nodes: tuple[Count, ...]
    devices: tuple[Count, ...]
    causes: tuple[Count, ...]
    codes: tuple[Count, ...]
    slow: tuple[Slow, ...]
    bins: tuple[tuple[float, float | None], ...]
    rates: tuple[tuple[float, float, float], ...]
    steps: StepTimes | None
    logs: Mapping[int, Sequence[Told]]

    @property
    def lost_seconds(self) -> float:
        """Of the observed time, overlaps counted once."""
        return figures.overlap(self.lost, self.span)

    @property
    def paused_seconds(self) -> float:
        return figures.overlap(self.paused, self.span)

    @property
    def slow_seconds(self) -> float:
        """Lost to slow ranks: neither in incidents nor paused."""
        return figures.slowed(self.slowed, self.span)

    @property
    def shrunk_seconds(self) -> float:
        """Lost because ranks were away: neither in incidents nor paused."""
        return figures.slowed(self.shrunk, self.span)

    @property
    def growth(self) -> int:
        """How many incidents were no fault: nodes came back."""
        return sum(growth(faults) for faults in self.faults)

    @property
    def again(self) -> int:
        return sum(c.steps_repeated for c in self.costs)

    @property
    def checkpoint(self) -> tuple[float, float]:
        """Seconds lost by the incidents that can be compared, and what restarts from the last
        checkpoint would have lost."""
        compared = [
            (c.lost_seconds, other)
            for c in self.costs
            if (other := c.restart_from_checkpoint_seconds) is not None
        ]
        return sum(lost for lost, _ in compared), sum(other for _, other in compared)


def assumptions(job: Job, every: float | None, steps: bool, restart: float | None) -> Assumptions:
    """The given values; a restart takes by default as long as this job took to start."""
    measured = figures.start_seconds(job) if restart is None else None
    seconds = measured if restart is None else restart
    return Assumptions(every, steps, seconds, measured is not None)


def read(records: Iterable[Record]) -> Job | None:
    """The job's last run, as a report needs it; None for no record at all."""
    job = of_records(records, read_round=rounds.read)
    if job is not None:
        job.finish()
    return job


def of_job(
    job: Job,
    assumed: Assumptions,
    now: Now | None = None,
    logs: Mapping[int, Sequence[Told]] | None = None,
) -> Account:
    costs = tuple(figures.cost(job, incident, assumed) for incident in job.incidents)
    faults = tuple(tuple(map(fault, incident.faults)) for incident in job.incidents)
    span = figures.observed(job)
    lost = tuple(figures.lost_intervals(job, costs))
    paused = tuple(figures.paused_intervals(job, lost))
    slowed = tuple(figures.slow_intervals(job, lost, paused))
    shrunk = tuple(figures.shrunk_intervals(job, lost, paused, slowed))
    strategies = sorted({i.strategy for i in job.incidents if i.strategy})
    by_strategy = {s: figures.mttr(i for i in job.incidents if i.strategy == s) for s in strategies}

    def counted(names: Callable[[Incident, Fault], str]) -> tuple[Count, ...]:
        return _counted(job, costs, faults, span, names)

    return Account(
        job=job,
        assumed=assumed,
        now=now,
        costs=costs,
        faults=faults,
        span=span,
        start=figures.start_seconds(job),
        lost=lost,
        paused=paused,
        slowed=slowed,
        shrunk=shrunk,
        goodput=figures.goodput(span, lost, paused, slowed, shrunk),
        mttr=figures.mttr(job.incidents),
        strategies={s: times for s, times in by_strategy.items() if times is not None},
        mtbf=figures.mtbf(span, sum(not growth(f) for f in faults)),
        nodes=counted(lambda i, f: _node(job, i, f)),
        devices=counted(lambda i, f: _device(job, f)),
        causes=counted(lambda i, f: f.cause),
        codes=counted(lambda i, f: f.code),
        slow=tuple(_slow(job)),
        bins=tuple(_bins(job, span, lost, paused, slowed, shrunk)),
        rates=tuple(_rates(job)),
        steps=step_times.of_samples(job.samples),
        logs=logs or {},
    )


def node_of(job: Job, found: Fault) -> int:
    return job.places.of(found.rank)[0] if found.rank >= 0 else found.node


def _node(job: Job, incident: Incident, found: Fault) -> str:
    """A node is a place in the job; each machine in that place is counted separately."""
    node = node_of(job, found)
    if node < 0 or found.growth:
        return ""
    host = incident.hosts.get(node, "")
    return f"node {node} ({host})" if host else f"node {node}"


def _device(job: Job, found: Fault) -> str:
    """The device of a rank: by default the one with the rank's place on its node as number."""
    if found.rank < 0:
        return ""
    node, place = job.places.of(found.rank)
    return f"node {node}, device {place} (rank {found.rank})" if node >= 0 else ""


def _counted(
    job: Job,
    costs: Sequence[Cost],
    faults: Sequence[Sequence[Fault]],
    span: Interval,
    names: Callable[[Incident, Fault], str],
) -> tuple[Count, ...]:
    """In how many incidents each name is among the causes; the most frequent first."""
    found: dict[str, list[int]] = {}
    for at, (incident, all_faults) in enumerate(zip(job.incidents, faults, strict=True), 1):
        for name in sorted({names(incident, f) for f in to_blame(all_faults)} - {""}):
            found.setdefault(name, []).append(at)
    counts = [
        Count(
            name,
            tuple(at),
            sum(costs[n - 1].lost_seconds for n in at),
            figures.mtbf(span, len(at)),
        )
        for name, at in found.items()
    ]
    return tuple(sorted(counts, key=lambda c: (-len(c.incidents), -c.lost_seconds, c.name)))


def _slow(job: Job) -> Iterable[Slow]:
    """The ranks that were slow most often: whose own steps took longer, or for which the others
    waited, so that all steps did."""
    found: dict[int, list[tuple[float, float]]] = {}
    for sample in job.samples:
        for rank, _, seconds in sample.slow:
            if sample.usual > 0:
                found.setdefault(rank, []).append((sample.at, seconds / sample.usual))
    for was in job.slow.over:
        for rank, share in was.ranks.items():
            times = 1.0 / max(1.0 - share, 1e-3)
            found.setdefault(rank, []).append((was.since, times))
            found[rank].append((was.until or was.since, times))
    ranked = sorted(found, key=lambda r: (-len(found[r]), -max(x for _, x in found[r]), r))
    for rank in ranked[:RANKED]:
        at = sorted(found[rank])
        node = job.places.of(rank)[0]
        yield Slow(rank, node, max(ratio for _, ratio in at), len(at), tuple(at))


def _bins(
    job: Job,
    span: Interval,
    lost: Sequence[Interval],
    paused: Sequence[Interval],
    slow: Sequence[Slowed],
    shrunk: Sequence[Slowed],
) -> Iterable[tuple[float, float | None]]:
    begin, end = job.began, max(job.last, span[1])
    count = max(min(BINS, int((end - begin) / LEAST)), 1)
    width = (end - begin) / count
    for n in range(count if width > 0 else 0):
        at, to = begin + n * width, begin + (n + 1) * width
        within = max(at, span[0]), min(to, span[1])
        stops = _within(lost, within), _within(paused, within)
        slower = _within(slow, within), _within(shrunk, within)
        yield at, figures.goodput(within, *stops, *slower)


def _within(intervals: Sequence[Timed], span: Interval) -> Sequence[Timed]:
    """Those that touch `span`, of intervals in order that do not overlap."""
    first = bisect_right(intervals, span[0], key=lambda i: i[1])
    return intervals[first : bisect_left(intervals, span[1], key=lambda i: i[0])]


def _rates(job: Job) -> Iterable[tuple[float, float, float]]:
    """Repeated steps are not new. Many entries are merged."""
    samples = [s for s in job.samples if s.step >= 0]
    every = max(-(-len(samples) // BINS), 1)
    taken = samples[::every]
    if samples and taken[-1] is not samples[-1]:
        taken.append(samples[-1])
    best = taken[0].step if taken else 0
    for before, after in zip(taken, taken[1:], strict=False):
        if after.at > before.at:
            new = max(after.step - best, 0)
            yield before.at, after.at, new * 60.0 / (after.at - before.at)
        best = max(best, after.step)

"""Every figure of a report, with its formula. docs/report.md says the same for readers.

Times are Unix times and seconds. `usual`: seconds of a step before an incident. The observed time
is from the moment at which every rank was protected for the first time to the last entry.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from taskd.core.job.ladder import GROW
from taskd.history.facts import REPAIRED, RESTARTED, Incident, Sample
from taskd.history.model import Job

Interval = tuple[float, float]
Slowed = tuple[float, float, float]  # from, to, the part of it that is lost


@dataclass(frozen=True)
class Assumptions:
    """What incidents are compared with: a restart of all ranks, which takes `restart` seconds until
    every rank trains again; None: not known. `measured`: that is how long this job took to start.
    A checkpoint is saved every `every` steps, or seconds of training where `steps` is false; None:
    not known, so no step is counted as repeated."""

    every: float | None
    steps: bool
    restart: float | None
    measured: bool


@dataclass(frozen=True)
class Cost:
    """Of an incident. `steps_repeated`: committed steps; `steps_repeated_at_least`: that many or
    more. `restart_from_checkpoint_seconds`: what such a restart would have lost, None where it
    cannot be compared."""

    steps_repeated: int
    steps_repeated_at_least: bool
    lost_seconds: float
    restart_from_checkpoint_seconds: float | None


@dataclass(frozen=True)
class Times:
    """Of repairs, in seconds. `phases`: the mean in each, over all of them, so that the sum is the
    mean of the whole as far as the phases cover it."""

    repairs: int
    mean: float
    median: float
    p95: float
    max: float
    phases: dict[str, float]


def observed(job: Job) -> Interval:
    """From the first protected moment to the last entry; of a job that has never been protected,
    nothing. If the oldest files of the journal are gone, from its first entry."""
    last = job.end.time if job.end is not None else job.last
    if job.missing_start:
        return job.began, max(last, job.began)
    first = job.protected[0] if job.protected else last
    return first, max(last, first)


def cost(job: Job, incident: Incident, assumed: Assumptions) -> Cost:
    """The cost of an incident.

    repaired:  lost = seconds + (reached - step) * usual
    restarted: lost = from its begin until the job has come to `reached` again, or the last entry
    otherwise: lost = seconds

    `seconds` of a repaired incident end when every rank has committed the interrupted step. The
    attempt under way counts as lost in full, so this is up to one step too much. Steps are those
    committed by a rank and repeated; after a restart, `reached` minus the first reported step,
    which may be later than the actual first one: a lower bound.
    """
    last = observed(job)[1]
    if incident.result == REPAIRED:
        again = max(incident.reached - incident.step, 0) if incident.step >= 0 else 0
        lost = incident.seconds + again * incident.usual
        least = False
    elif incident.result == RESTARTED:
        after = job.samples[bisect_left(job.samples, incident.ended, key=lambda s: s.at) :]
        again = max(incident.reached - after[0].step, 0) if after and incident.reached >= 0 else 0
        lost, least = _until(after, incident.reached, last) - incident.began, True
    else:
        again, lost, least = 0, incident.seconds, False
    # without growth there would have been nothing to restart for
    compared = incident.result in (REPAIRED, RESTARTED) and incident.strategy != GROW
    other = checkpoint(job, incident, assumed) if compared else None
    return Cost(again, least, max(lost, 0.0), other)


def checkpoint(job: Job, incident: Incident, assumed: Assumptions) -> float | None:
    """The cost of a restart from the last checkpoint at that moment.

    by steps:   restart + (reached mod every) * usual
    by seconds: restart + (began - first protected moment) mod every
    not known:  restart

    It counts neither the time to save checkpoints nor the time to notice the fault.
    """
    if assumed.restart is None or assumed.every is None:
        return assumed.restart
    if assumed.steps:
        return assumed.restart + max(incident.reached, 0) % assumed.every * incident.usual
    trained = max(incident.began - observed(job)[0], 0.0)
    return assumed.restart + trained % assumed.every


def start_seconds(job: Job) -> float | None:
    """How long the job took from its first entry until every rank was protected."""
    if job.missing_start or not job.protected:
        return None
    return max(job.protected[0] - job.began, 0.0)


def lost_intervals(job: Job, costs: Sequence[Cost]) -> list[Interval]:
    """When incidents prevented new steps: [began, began + lost] of each, merged where they overlap,
    within the observed time."""
    begun = ((i.began, i.began + c.lost_seconds) for i, c in zip(job.incidents, costs, strict=True))
    return united(begun, observed(job))


def paused_intervals(job: Job, lost: Sequence[Interval]) -> list[Interval]:
    """When an operator had paused the job and no incident was going on: not in `lost`."""
    every = united(job.paused, observed(job))
    return [part for interval in every for part in without(interval, lost)]


def slow_intervals(job: Job, lost: Sequence[Interval], paused: Sequence[Interval]) -> list[Slowed]:
    """When the job trained and the others waited for a slow rank: the share of a step that they
    waited longer for it than for a rank as fast as the median is lost."""
    return _trained(job, [(s.since, s.until, s.share) for s in job.slow.over], lost, paused)


def shrunk_intervals(
    job: Job, lost: Sequence[Interval], paused: Sequence[Interval], slow: Sequence[Slowed] = ()
) -> list[Slowed]:
    """When ranks were away, the job trained, and a step took `shares` times as long:
    1 - 1 / shares of that time is lost, of what is not lost to slow ranks."""
    was = [(s.since, s.until, 1.0 - 1.0 / s.shares) for s in job.shrunken]
    found = list[Slowed]()
    for begin, end, part in _trained(job, was, lost, paused):
        for a, b, share in slow:
            if begin < b and a < end:
                found += [(begin, a, part)] * (begin < a)
                found.append((max(begin, a), min(end, b), part * (1.0 - share)))
                begin = min(end, b)
        found += [(begin, end, part)] * (begin < end)
    return found


def _trained(
    job: Job,
    slower: Iterable[tuple[float, float | None, float]],
    lost: Sequence[Interval],
    paused: Sequence[Interval],
) -> list[Slowed]:
    """In order, without what is lost or paused, and none twice."""
    span, taken, found = observed(job), united([*lost, *paused], observed(job)), list[Slowed]()
    ended = span[0]
    for since, until, part in sorted(slower, key=lambda s: s[0]):
        begin, end = max(since, ended), min(until or since, span[1])
        found += ((a, b, part) for a, b in without((begin, end), taken))
        ended = max(end, ended)
    return found


def slowed(intervals: Iterable[Slowed], span: Interval) -> float:
    """How many seconds of `span` are lost because steps take longer."""
    return sum(overlap([(begin, end)], span) * part for begin, end, part in intervals)


def goodput(
    span: Interval,
    lost: Sequence[Interval],
    paused: Sequence[Interval],
    slow: Sequence[Slowed] = (),
    shrunk: Sequence[Slowed] = (),
) -> float | None:
    """1 - (lost + paused + slow ranks + shrunk) / observed: the share of the observed time in which
    new steps came as fast as the median rank takes them. None where nothing was observed."""
    whole = span[1] - span[0]
    if whole <= 0:
        return None
    gone = overlap(lost, span) + overlap(paused, span)
    gone += slowed(slow, span) + slowed(shrunk, span)
    return max(1.0 - gone / whole, 0.0)


def mttr(incidents: Iterable[Incident]) -> Times | None:
    """The mean of `seconds` over the repaired incidents, and of each phase; the percentile is the
    nearest rank. None if none was repaired."""
    repaired = [i for i in incidents if i.result == REPAIRED]
    if not repaired:
        return None
    seconds = sorted(i.seconds for i in repaired)
    count = len(seconds)
    phases: dict[str, float] = {}
    for incident in repaired:
        for phase, spent in incident.phases.items():
            phases[phase] = phases.get(phase, 0.0) + spent / count
    middle = (seconds[(count - 1) // 2] + seconds[count // 2]) / 2
    p95 = seconds[math.ceil(0.95 * count) - 1]
    return Times(count, sum(seconds) / count, middle, p95, seconds[-1], phases)


def mtbf(span: Interval, incidents: int) -> float | None:
    """observed time / number of incidents; None for no incident. With few incidents it says little:
    it is shown with their number."""
    return (span[1] - span[0]) / incidents if incidents else None


def overlap(intervals: Iterable[Interval], span: Interval) -> float:
    """How many seconds of `span` the intervals, which do not overlap, cover."""
    return sum(max(min(end, span[1]) - max(begin, span[0]), 0.0) for begin, end in intervals)


def without(interval: Interval, taken: Sequence[Interval]) -> Iterable[Interval]:
    """The parts of `interval` that are in none of `taken`, which are in order and do not
    overlap."""
    begin, end = interval
    for from_, to in taken[bisect_left(taken, begin, key=lambda t: t[1]) :]:
        if from_ >= end:
            break
        if begin < from_:
            yield begin, from_
        begin = max(begin, to)
    if begin < end:
        yield begin, end


def united(intervals: Iterable[Interval], span: Interval) -> list[Interval]:
    """In order, clipped to `span`, merged where they overlap."""
    found: list[Interval] = []
    for begin, end in sorted(intervals):
        begin, end = max(begin, span[0]), min(end, span[1])
        if end <= begin:
            continue
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((begin, end))
    return found


def _until(after: Sequence[Sample], reached: int, last: float) -> float:
    """When the job had reached step `reached` again, interpolated between two samples."""
    for n, sample in enumerate(after):
        if sample.highest >= reached:
            if n == 0:
                return sample.at
            before = after[n - 1]
            share = (reached - before.highest) / max(sample.highest - before.highest, 1)
            return before.at + (sample.at - before.at) * min(max(share, 0.0), 1.0)
    return last

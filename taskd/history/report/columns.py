"""The account as the page's data: columns instead of objects, texts once each, and of the ranks of
a large job those that were last. 5,000 incidents of 10,000 ranks are about 10 MB.

Times are in ms after the job's first entry, in an incident in ms after it began. web/data.js reads
what is written here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from taskd.history.facts import Incident, Line, Places
from taskd.history.report import words
from taskd.history.report.account import Account, Count, Slow, node_of
from taskd.history.report.causes import Fault, to_blame
from taskd.history.report.figures import Times
from taskd.history.report.rounds import EVENTS, PHASES, WORST, Round, latest

SORTED = 16  # ranks that are shown in their order
ALL = 64  # ranks of a round that are all shown
COUNTED = 12  # nodes, devices, causes and codes, each
SPOTS = 120  # moments of a slow rank


class _Texts:
    """Each text once; a text is told as its place."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        return self.known.setdefault(text, len(self.known))


def columns(account: Account) -> dict[str, Any]:
    job, texts = account.job, _Texts()
    zero, last = job.began, max(job.last, account.span[1])
    told = list(zip(job.incidents, account.costs, account.faults, strict=True))
    blamed = [_blamed(account, faults) for faults in account.faults]
    data: dict[str, Any] = {
        "job": job.name,
        "summary": words.first(account),
        "facts": list(_facts(account)),
        "figures": list(_figures(account)),
        "assumed": words.assumed(account) if account.checkpoint[1] > 0 else "",
        "zero": round(zero * 1e3),
        "length": _ms(last - zero),
        "span": [_ms(t - zero) for t in account.span],
        "bins": [None if good is None else round(good, 4) for _, good in account.bins],
        "rates": [[_ms(a - zero), _ms(b - zero), round(r, 2)] for a, b, r in account.rates],
        "paused": [[_ms(a - zero), _ms(b - zero)] for a, b in account.paused],
        "protected": [_ms(t - zero) for t in job.protected],
        "places": _places(job.places),
        "phases": list(PHASES),
        "events": list(EVENTS),
        "parts": list(EVENTS.values()),
        "incidents": {
            "began": [_ms(i.began - zero) for i, _, _ in told],
            "took": [_ms(i.seconds) for i, _, _ in told],
            "lost": [_ms(c.seconds) for _, c, _ in told],
            "instead": [None if c.checkpoint is None else _ms(c.checkpoint) for _, c, _ in told],
            "again": [c.again for _, c, _ in told],
            "least": [int(c.least) for _, c, _ in told],
            "step": [i.step for i, _, _ in told],
            "reached": [i.reached for i, _, _ in told],
            "result": [texts(i.result) for i, _, _ in told],
            "strategy": [texts(i.strategy) for i, _, _ in told],
            "cause": [texts(f.cause if f else "") for f in blamed],
            "rank": [f.rank if f else -1 for f in blamed],
            "node": [node_of(job, f) if f else -1 for f in blamed],
        },
        "details": [_detail(i, f, texts) for i, _, f in told],
        "lines": [_line(line, zero, texts) for line in job.lines],
        "unsaid": job.unsaid,
        "mttr": [
            _times(name, times)
            for name, times in (*account.strategies.items(), ("all", account.mttr))
            if times is not None and (name != "all" or len(account.strategies) > 1)
        ],
        "nodes": _counts(account.nodes),
        "devices": _counts(account.devices),
        "causes": _counts(account.causes),
        "codes": _counts(account.codes),
        "slow": [_slow(s, zero) for s in account.slow],
    }
    data["texts"] = list(texts.known)
    return data


def _places(places: Places) -> list[Any]:
    return [list(places.firsts), list(places.nodes), list(places.counts), places.per_node]


def _facts(account: Account) -> Iterable[str]:
    job = account.job
    yield f"{words.counted(job.nodes, 'node')}, {words.counted(job.ranks, 'rank')}"
    yield f"{words.clock(job.began)} to {words.clock(max(job.last, account.span[1]))}"
    if job.ladder:
        yield f"strategies: {', '.join(job.ladder)}"
    if job.managers > 1:
        yield words.counted(job.managers, "manager")
    if job.version:
        yield f"taskd {job.version}"
    if job.missing_start:
        yield "the oldest part of the journal is gone: figures are of what is left"
    if job.gaps:
        yield f"{words.counted(job.gaps, 'line')} of the journal were lost"
    for device, code in list(job.separated.items())[:20]:
        yield f"device {device} is separated because of {code}"


def _figures(account: Account) -> Iterable[list[str]]:
    """What stands in large letters: value, name, note."""
    good, observed = account.goodput, words.span(account.span[1] - account.span[0])
    if good is not None:
        yield [_percent(good), "goodput", f"of {observed} since all ranks were protected"]
    yield [words.span(account.lost_seconds), "lost to incidents", _twice(account)]
    if account.mttr is not None:
        most = words.span(account.mttr.most)
        median = words.span(account.mttr.median)
        yield [words.span(account.mttr.mean), "MTTR", f"median {median}, most {most}"]
    if account.mtbf is not None:
        count = words.counted(len(account.job.incidents), "incident")
        yield [words.span(account.mtbf), "MTBF", count]
    other = account.checkpoint[1]
    if other > 0:
        note = f"assumed: a checkpoint every {words.every(account)}"
        yield [words.span(other), "by restarts instead", note]
    if account.start is not None:
        yield [words.span(account.start), "to start", "until all ranks were protected"]
    if account.paused_seconds:
        yield [words.span(account.paused_seconds), "paused", "by an operator"]


def _percent(share: float) -> str:
    """So that what is not all never reads as all."""
    for digits in (1, 2, 3):
        text = f"{share:.{digits}%}"
        if share == 1.0 or not text.startswith("100"):
            return text
    return "99.999%"


def _twice(account: Account) -> str:
    return f"{words.counted(account.again, 'step')} done twice"


def _blamed(account: Account, faults: Sequence[Fault]) -> Fault | None:
    found = to_blame(faults)
    return found[0] if found else None


def _detail(incident: Incident, faults: Sequence[Fault], texts: _Texts) -> list[Any]:
    """faults, replaced ranks, [phase, ms], [round, phase, ms], lines, unsaid, tried, rounds."""
    began = incident.began
    return [
        [texts(f.text) for f in faults],
        incident.ranks[:ALL],
        len(incident.ranks),
        [[texts(phase), _ms(seconds)] for phase, seconds in incident.phases.items()],
        [[number, texts(phase), _ms(at - began)] for number, phase, at in incident.entered],
        [_line(line, began, texts) for line in incident.lines],
        incident.unsaid,
        [texts(t) for t in incident.tried],
        [_round(r, incident, texts) for r in incident.rounds],
    ]


def _line(line: Line, zero: float, texts: _Texts) -> list[Any]:
    return [_ms(line.at - zero), texts(line.kind), texts(line.text)]


def _round(told: Round, incident: Incident, texts: _Texts) -> list[Any]:
    """number, strategy, began, ranks in all, the ranks that are shown, the moments of each event,
    and for those that are not shown the first, the middle and the last moment of each event."""
    shown = _shown(told, incident)
    rest = np.setdiff1d(np.arange(len(told.ranks)), shown)
    moments: list[Any] = []
    folded: list[Any] = []
    for event in EVENTS:
        times = told.times.get(event)
        if times is None:
            moments.append(None)
            folded.append(None)
            continue
        moments.append([None if t != t else round(t, 1) for t in times[shown].tolist()])
        others = times[rest]
        others = np.sort(others[~np.isnan(others)])
        folded.append(
            [round(float(others[n]), 1) for n in (0, len(others) // 2, -1)]
            if len(others)
            else [round(told.first[event], 1), None, None]
            if told.total > len(told.ranks) and event in told.first
            else None
        )
    ranks = told.ranks[shown].tolist()
    return [
        told.number,
        texts(told.strategy),
        round(told.began, 1),
        told.total,
        ranks,
        moments,
        folded,
    ]


def _shown(told: Round, incident: Incident) -> np.ndarray:
    """The places of the ranks that are shown; of many, the latest first."""
    places = np.arange(len(told.ranks))
    if len(places) <= SORTED:
        return places
    return latest(told, incident.ranks, None if len(places) <= ALL else WORST)


def _times(name: str, times: Times) -> list[Any]:
    """name, repairs, mean, median, 95%, most, [phase, ms]."""
    spent = [[p, _ms(times.phases[p])] for p in PHASES if p in times.phases]
    figures = (times.mean, times.median, times.p95, times.most)
    return [name, times.count, *map(_ms, figures), spent]


def _counts(counts: Sequence[Count]) -> list[Any]:
    """How many there are, and the first of them."""
    return [len(counts), [_count(c) for c in counts[:COUNTED]]]


def _count(count: Count) -> list[Any]:
    between = None if count.mtbf is None else _ms(count.mtbf)
    return [count.name, len(count.incidents), _ms(count.seconds), between]


def _slow(slow: Slow, zero: float) -> list[Any]:
    """rank, node, most, seen, [ms, ratio] of at most SPOTS moments, the worst of neighbors."""
    every = -(-len(slow.at) // SPOTS)
    spots = [max(slow.at[n : n + every], key=lambda s: s[1]) for n in range(0, len(slow.at), every)]
    at = [[_ms(t - zero), round(ratio, 2)] for t, ratio in spots]
    return [slow.rank, slow.node, round(slow.ratio, 2), slow.seen, at]


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 1)

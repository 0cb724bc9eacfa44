"""Assembles the page, one file that loads nothing, from the files in web/ and the data.

A fault's text may be anything, also HTML. The data are JSON in a block that is no script, in which
every < > & is escaped, so that nothing in it can end the block; the scripts put texts into the page
as text alone. The page's policy allows its own script and style, by their digests, and no other.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from taskd.history.facts import Death, Incident, Line
from taskd.history.report import words
from taskd.history.report.account import Account, Slow, node_of
from taskd.history.report.causes import Fault, to_blame
from taskd.history.report.plain import plain
from taskd.history.report.rounds import EVENTS, PHASES, WORST, Round, latest

WEB = Path(__file__).parent / "web"
SCRIPTS = (
    "dom.js",
    "data.js",
    "timeline.js",
    "steps.js",
    "gantt.js",
    "detail.js",
    "incidents.js",
    "tables.js",
    "keys.js",
    "main.js",
)
LIVE = "live.js"  # of a page that is served, and asks for what is new
STYLES = ("page.css", "parts.css")
SORTED = 16  # ranks that are shown in their order
ALL = 64  # ranks of a round that are all shown
SPOTS = 120  # moments of a slow rank
TRACEBACKS = 2 << 20  # characters of a page


def page(account: Account, live: bool = False) -> str:
    """The page as text. `live`: it asks where it comes from for newer data."""
    scripts = (*SCRIPTS, LIVE) if live else SCRIPTS
    script = "".join(["'use strict';(()=>{\n", *map(_file, scripts), "})();\n"])
    style = "".join(map(_file, STYLES))
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}';"
        " img-src data:; base-uri 'none'; form-action 'none'"
        + ("; connect-src 'self'" if live else "")
    )
    parts = {
        "POLICY": policy,
        "TITLE": html.escape(f"taskd report: {account.job.name}"),
        "STYLE": style,
        "SCRIPT": script,
        "DATA": embedded(data(account)),
    }
    # in one pass: a part may hold the name of another
    return re.sub(r"%([A-Z]+)%", lambda found: parts[found[1]], _file("page.html"))


def data(account: Account) -> dict[str, Any]:
    """The account as plain data, with details that only the charts show. Its own times are in ms
    after the job's first entry, those of an incident in ms after it began."""
    job = account.job
    zero, told = job.began, plain(account)
    return {
        **told,
        "facts": list(_facts(account)),
        "figures": list(words.figures(account)),
        "assumed": words.assumed(account),
        "length": _ms(_end(account) - zero),
        "bins": [None if good is None else round(good, 4) for _, good in account.bins],
        "steps": _steps(account),
        "deaths": [_death(account, death, zero, job.hosts) for death in job.deaths],
        "rates": [[_ms(a - zero), _ms(b - zero), round(r, 2)] for a, b, r in account.rates],
        "paused": [[_ms(a - zero), _ms(b - zero)] for a, b in account.paused],
        "shrunk": [
            {**one, "who": was.who} for one, was in zip(told["shrunk"], job.shrunken, strict=True)
        ],
        "protected": [_ms(t - zero) for t in job.protected],
        "ladder": job.ladder,
        "phases": PHASES,
        "events": EVENTS,
        "incidents": list(_incidents(account, told["incidents"])),
        "lines": [_line(line, zero) for line in job.lines],
        "unsaid": job.unsaid,
        "slow_ranks": [
            {**slow, "at": _spots(of, zero)}
            for slow, of in zip(told["slow_ranks"], account.slow, strict=True)
        ],
    }


def _end(account: Account) -> float:
    return max(account.job.last, account.span[1])


def _facts(account: Account) -> Iterable[str]:
    job = account.job
    yield f"{words.counted(job.nodes, 'node')}, {words.counted(job.ranks, 'rank')}"
    yield f"{words.clock(job.began)} to {words.clock(_end(account))}"
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


def _steps(account: Account) -> dict[str, Any] | None:
    if (steps := account.steps) is None:
        return None
    zero = account.job.began
    return {
        "attempts": steps.attempts,
        "median": _ms(steps.median),
        "p99": _ms(steps.p99),
        "counts": [[_ms(seconds), count] for seconds, count in steps.counts],
        "over": [
            [_ms(a - zero), _ms(b - zero), _ms(median), _ms(p99)]
            for a, b, median, p99 in steps.over
        ],
    }


def _incidents(account: Account, told: Sequence[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    """The newest tracebacks are shown, as many as are not too much for a page."""
    left, shown = TRACEBACKS, list[dict[str, Any]]()
    job = account.job
    for at in range(len(told) - 1, -1, -1):
        incident = job.incidents[at]
        deaths = [_death(account, d, incident.began, incident.hosts) for d in incident.deaths]
        for death in deaths:
            left -= len(death["traceback"])
            if left < 0 and death["traceback"]:
                death["traceback"] = "It is in the journal: this page would be too large."
        logs = [
            {"at": _ms(when - incident.began), "name": one.name, "text": text}
            for one in account.logs.get(at, ())
            for when, text in one.lines
        ]
        shown.append(
            {
                **told[at],
                **_detail(account, incident, account.faults[at]),
                "deaths": deaths,
                "logs": sorted(logs, key=lambda line: line["at"]),
                "longer": [one.name for one in account.logs.get(at, ()) if one.more],
            }
        )
    yield from reversed(shown)


def _death(account: Account, death: Death, zero: float, hosts: dict[int, str]) -> dict[str, Any]:
    name = account.job.about.get(death.node, {}).get("host", "")
    address = hosts.get(death.node, "")
    host = f"{name} ({address})" if name and address else name or address
    return {**vars(death), "at": _ms(death.at - zero), "host": host}


def _detail(account: Account, incident: Incident, faults: Sequence[Fault]) -> dict[str, Any]:
    began, found = incident.began, next(iter(to_blame(faults)), None)
    return {
        "cause": found.cause if found else "",
        "rank": found.rank if found else -1,
        "node": node_of(account.job, found) if found else -1,
        "entered": [
            {"round": number, "phase": phase, "at": _ms(at - began)}
            for number, phase, at in incident.entered
        ],
        "lines": [_line(line, began) for line in incident.lines],
        "unsaid": incident.unsaid,
        "tried": incident.tried,
        "rounds": [_round(account, told, incident) for told in incident.rounds],
    }


def _line(line: Line, zero: float) -> dict[str, Any]:
    return {"at": _ms(line.at - zero), "kind": line.kind, "text": line.text}


def _round(account: Account, told: Round, incident: Incident) -> dict[str, Any]:
    """`ranks` are those that are shown, `moments` theirs of each event; `folded` are the first, the
    middle and the last moment of the others."""
    shown = np.arange(len(told.ranks))
    if len(shown) > SORTED:
        shown = latest(told, incident.ranks, None if len(shown) <= ALL else WORST)
    rest = np.setdiff1d(np.arange(len(told.ranks)), shown)
    ranks = told.ranks[shown].tolist()
    moments: list[Any] = [None] * len(EVENTS)
    folded: list[Any] = [None] * len(EVENTS)
    for n, event in enumerate(EVENTS):
        if (times := told.times.get(event)) is None:
            continue
        moments[n] = [None if t != t else round(t, 1) for t in times[shown].tolist()]
        others = np.sort(times[rest][~np.isnan(times[rest])])
        if len(others):
            folded[n] = [round(float(others[at]), 1) for at in (0, len(others) // 2, -1)]
        elif told.total > len(told.ranks) and event in told.first:
            folded[n] = [round(told.first[event], 1), None, None]
    return {
        "number": told.number,
        "strategy": told.strategy,
        "began": round(told.began, 1),
        "all": told.total,
        "ranks": ranks,
        "nodes": [account.job.places.of(rank)[0] for rank in ranks],
        "moments": moments,
        "folded": folded,
    }


def _spots(slow: Slow, zero: float) -> list[Any]:
    """[ms, ratio] of at most SPOTS moments, the worst of neighbors."""
    every = -(-len(slow.at) // SPOTS)
    spots = [max(slow.at[n : n + every], key=lambda s: s[1]) for n in range(0, len(slow.at), every)]
    return [[_ms(t - zero), round(ratio, 2)] for t, ratio in spots]


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 1)


def embedded(data: Any) -> str:
    """JSON that can stand inside of a script block."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _file(name: str) -> str:
    return (WEB / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

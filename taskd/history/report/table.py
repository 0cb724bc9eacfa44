"""The account on a terminal. Texts come from the nodes: they are printed as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from rich.console import Group, JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from taskd.history.facts import REPAIRED, span
from taskd.history.report.account import Account, Count
from taskd.history.report.causes import to_blame
from taskd.history.report.figures import Times
from taskd.history.report.rounds import PHASES
from taskd.history.report.words import assumed, clock, counted, figures, first
from taskd.history.status.rendering import printable

INCIDENTS = 20  # the newest
COUNTS = 5  # rows of each table


def render(account: Account, incidents: int = INCIDENTS) -> RenderableType:
    """The first sentences, the figures, and the newest incidents."""
    parts: list[RenderableType] = [_text(f"job {account.job.name}", "bold")]
    parts += [_text(first(account)), Text(), _figures(account)]
    if account.job.incidents:
        parts += [Text(), _incidents(account, incidents), Text(), _repairs(account)]
        for title, counts in (
            ("node", account.nodes),
            ("device", account.devices),
            ("cause", account.causes),
            ("fault code", account.codes),
        ):
            if counts:
                parts += [Text(), _counts(title, counts)]
    if account.job.shrunken:
        parts += [Text(), _shrunk(account)]
    if account.slow:
        parts += [Text(), _slow(account)]
    if text := assumed(account):
        parts += [Text(), _text(text, "dim")]
    return Group(*parts)


def _figures(account: Account) -> RenderableType:
    grid = Table.grid(padding=(0, 3, 0, 0))
    for name, value, note in figures(account):
        grid.add_row(_text(name, "dim"), _text(value), _text(note))
    return grid


def _incidents(account: Account, most: int) -> RenderableType:
    job = account.job
    names = ["#", "began", "cause", "strategy", "result", "took", "lost", "repeated"]
    # without checkpoints it is the same for all
    compared = account.assumed.every is not None
    table = _table(*names, *(["restart"] if compared else []))
    count = len(job.incidents)
    for n in range(max(count - most, 0), count):
        incident, cost = job.incidents[n], account.costs[n]
        other = cost.restart_from_checkpoint_seconds
        blamed = to_blame(account.faults[n])
        cause = blamed[0].cause if blamed else "-"
        if blamed and blamed[0].rank >= 0:
            cause = f"rank {blamed[0].rank}: {cause}"
        more = f" +{len(blamed) - 1}" if len(blamed) > 1 else ""
        cells = (
            str(n + 1),
            clock(incident.began)[5:-4],
            cause + more,
            incident.strategy,
            incident.result,
            span(incident.seconds),
            span(cost.lost_seconds),
            ("≥" if cost.steps_repeated_at_least else "") + str(cost.steps_repeated),
            "-" if other is None else span(other),
        )
        shown = cells if compared else cells[:-1]
        table.add_row(*map(_text, shown), style="" if incident.result == REPAIRED else "yellow")
    if count > most:
        table.caption = f"{counted(count - most, 'earlier incident')}: see --html or --json"
    return table


def _repairs(account: Account) -> RenderableType:
    """Mean seconds in each phase, by strategy."""
    columns = dict(account.strategies)
    if account.mttr is None:
        return Text("no incident was repaired")
    if len(columns) != 1:
        columns["all"] = account.mttr
    table = _table("MTTR", *columns)

    def row(name: str, said: Callable[[Times], str]) -> None:
        table.add_row(*map(_text, (name, *map(said, columns.values()))))

    row("repairs", lambda times: str(times.repairs))
    for phase in PHASES:
        if phase in account.mttr.phases:
            row(phase, partial(_spent, phase))
    row("mean", lambda times: span(times.mean))
    row("95%", lambda times: span(times.p95))
    return table


def _spent(phase: str, times: Times) -> str:
    return span(times.phases.get(phase, 0.0))


def _counts(title: str, counts: Sequence[Count]) -> RenderableType:
    table = _table(title, "incidents", "lost", "MTBF")
    for c in counts[:COUNTS]:
        between = "-" if c.mtbf_seconds is None else span(c.mtbf_seconds)
        table.add_row(*map(_text, (c.name, str(len(c.incidents)), span(c.lost_seconds), between)))
    if len(counts) > COUNTS:
        table.caption = f"and {len(counts) - COUNTS} more"
    return table


def _shrunk(account: Account) -> RenderableType:
    table = _table("shrunk since", "for", "ranks", "a step takes", "away")
    every = account.job.shrunken
    for was in every[-INCIDENTS:]:
        lasted = span((was.until or was.since) - was.since)
        ranks, longer = f"{was.ranks} of {was.of}", f"up to {was.shares} x"
        cells = clock(was.since)[5:-4], lasted, ranks, longer, was.who
        table.add_row(*map(_text, cells))
    if len(every) > INCIDENTS:
        table.caption = f"and {len(every) - INCIDENTS} before: see --html or --json"
    return table


def _slow(account: Account) -> RenderableType:
    table = _table("slow rank", "node", "at most", "seen")
    for s in account.slow[:COUNTS]:
        cells = (str(s.rank), str(s.node), f"{s.ratio:.2f} x median", str(s.seen))
        table.add_row(*map(_text, cells))
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.caption_justify = "left"
    left: Iterable[str] = (columns[0], "began", "cause", "strategy", "result")
    for name in columns:
        justify: JustifyMethod = "left" if name in left else "right"
        whole = name == "strategy"  # the causes have shorter words
        table.add_column(_text(name), justify=justify, overflow="fold", no_wrap=whole)
    return table


def _text(text: str, style: str = "") -> Text:
    return Text(printable(text), style)

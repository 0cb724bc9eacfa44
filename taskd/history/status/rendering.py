"""The model as lines for a terminal of any width: the same once and live.

Texts come from the nodes: they are printed as they are, never as markup, and cannot control the
terminal.
"""

from __future__ import annotations

import time
import unicodedata
from collections.abc import Callable, Iterable

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from taskd.history.facts import named
from taskd.history.status.model import UNDER_WAY, Model
from taskd.messages.to_operator import IncidentSeen, Overview, RankSeen, ShrunkSeen

INCIDENTS = 5  # shown in full
STATES = {
    "training": "bold green",
    "over": "bold",
    "repairing": "bold yellow",
    "paused": "bold yellow",
    "silent": "bold red",
}
When = Callable[[float], str]


def clock(seconds: float) -> str:
    """Unix time as the reader's own clock has it."""
    return time.strftime("%m-%d %H:%M:%S", time.localtime(seconds))


def render(model: Model, when: When = clock) -> RenderableType:
    """Everything that is known, the most important first. `when`: writes a Unix time."""
    seen = model.seen
    parts: list[RenderableType] = [_head(model)]
    if model.source == "journal":
        parts.append(_line(f"from {model.where}, last written {_span(model.age)} ago", "dim"))
    if model.end is not None:
        word = "well" if model.end.ok else "with an error"
        parts.append(_line(f"{when(model.end.time)}  ended {word}: {model.end.reason}", "bold"))
    elif model.source == "journal":
        parts.append(_line(seen.detail))
    if not seen.repairs:
        text = "recovery is paused (process-recover-enable): the next fault ends the job"
        parts.append(_line(text, "bold yellow"))
    if seen.shrunk is not None and not model.over:
        parts.append(_line(_shrunk(seen.shrunk, when), "bold yellow"))
    if seen.step >= 0:
        parts.append(_steps(seen, model.source == "manager" and not model.over))
    if seen.phases and not model.over:
        counts = ", ".join(f"{count} {phase}" for phase, count in seen.phases.items())
        parts.append(_line(f"ranks: {counts}"))
    if seen.listed and not model.over:
        parts.append(_ranks(seen))
    if not model.over:
        parts += _nodes(seen)
    parts += _incidents(model, when)
    return Group(*parts)


def _head(model: Model) -> Text:
    seen = model.seen
    state = "over" if model.over else seen.state
    head = Text(f"job {printable(seen.job)}  ")
    head.append(state, STATES.get(state, ""))
    if model.source == "manager" and seen.detail not in (state, "training, protected"):
        head.append(f"  {printable(seen.detail)}")
    facts = [f"{_count(seen.nodes, 'node')}, {_count(seen.ranks, 'rank')}"]
    if seen.standbys:
        facts.append(_count(seen.standbys, "standby", "standbys"))
    if seen.generation:
        facts.append(f"generation {seen.generation}")
    facts.append(f"term {seen.term}")
    head.append(f"\n{', '.join(facts)}", "dim")
    return head


def _steps(seen: Overview, now: bool) -> RenderableType:
    """`now`: the job is running, so recent rates can be extrapolated."""
    ahead = f" to {seen.highest}" if seen.highest > seen.step else ""
    said = [f"step {seen.step}{ahead}" + (f" of {seen.total}" if seen.total else "")]
    if seen.rate and now:
        said.append(f"{seen.rate:.1f} steps/min")
    if seen.usual:
        said.append(f"{seen.usual:.3g} s/step")
    if seen.total and seen.rate and now and seen.step < seen.total:
        said.append(f"{_span((seen.total - seen.step) * 60 / seen.rate)} left")
    if seen.heard > 10:
        said.append(f"as of {_span(seen.heard)} ago")
    text = _line(", ".join(said))
    if not seen.total:
        return text
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=30)
    grid.add_column()
    share = min(seen.step / seen.total, 1.0)
    bar = ProgressBar(total=seen.total, completed=min(seen.step, seen.total), width=30)
    grid.add_row(bar, Text(f"{share:.0%}"))
    return Group(text, grid)


def _shrunk(shrunk: ShrunkSeen, when: When) -> str:
    since = f" since {when(shrunk.since)}" if shrunk.since else ""
    times = _count(shrunk.shares, "time")
    longer = f", a step takes up to {times} as long" if shrunk.shares else ""
    missing = shrunk.of - shrunk.ranks
    away = f"{named(shrunk.away, missing)} {'is' if missing == 1 else 'are'} away"
    said = [f"shrunk: {shrunk.ranks} of {shrunk.of} ranks train{since}{longer}", away]
    for node, standby in shrunk.preparing:
        said.append(f"standby {standby[:8]} is being prepared for node {node}")
    if shrunk.waits:
        more = shrunk.waits - len(shrunk.waiting)
        nodes = ", ".join(map(str, shrunk.waiting)) + (f" and {more} more" if more else "")
        many = shrunk.waits > 1
        standbys = "standbys for nodes" if many else "a standby for node"
        said.append(f"waiting for {standbys} {nodes}")
    return "; ".join(said)


def _ranks(seen: Overview) -> RenderableType:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in ("rank", "node", "step", "phase", "s/step", ""):
        table.add_column(name, justify="left" if name in ("phase", "") else "right")
    for rank in seen.listed:
        table.add_row(*_rank(rank, seen.usual), style="yellow" if rank.slow else None)
    return table


def _rank(rank: RankSeen, usual: float) -> Iterable[Text]:
    speed = f"{rank.usual:.3g}" if rank.usual else ""
    note = f"slow: {rank.usual / usual:.2f} times the median" if rank.slow and usual else ""
    fields = (str(rank.rank), str(rank.node), str(rank.step), rank.phase, speed, note)
    return [Text(printable(field)) for field in fields]


def _nodes(seen: Overview) -> Iterable[Text]:
    for node in seen.troubled:
        yield _line(f"node {node.node}: {node.state}", "red")
    if (more := seen.troubles - len(seen.troubled)) > 0:
        yield _line(f"and {_count(more, 'node')} more that do not run", "red")


def _incidents(model: Model, when: When) -> Iterable[Text]:
    shown = model.incidents[-INCIDENTS:]
    if not model.more:
        yield _line("no incidents")
        return
    if (more := model.more - len(shown)) > 0:
        yield _line(f"{_count(more, 'earlier incident')}, see --json", "dim")
    for incident in shown:
        yield from _incident(incident, when)


def _incident(incident: IncidentSeen, when: When) -> Iterable[Text]:
    """Three lines or more, which fit any terminal; a table of so many columns does not."""
    head = Text(f"{when(incident.began)}  incident {incident.incident}  ")
    under_way = incident.result == UNDER_WAY
    result = f"{incident.phase}, round {incident.round}" if under_way else incident.result
    style = "bold green" if incident.result == "repaired" else "bold yellow"
    head.append(f"{printable(incident.strategy)}  {printable(result)}", style)
    head.append(f"  {_ms(incident.seconds)} ms")
    if incident.step >= 0:
        again = max(incident.reached - incident.step, 0)
        head.append(f"  step {incident.step}, {_count(again, 'step')} lost")
    if incident.replaced:
        ranks = ",".join(map(str, incident.ranks))
        more = f" and {incident.replaced - len(incident.ranks)} more"
        head.append(f"  replaced: {'rank' if incident.replaced == 1 else 'ranks'} {ranks}")
        head.append(more if incident.replaced > len(incident.ranks) else "")
    yield head
    for fault in incident.faults:
        yield _line(f"    {fault}")
    if incident.more > len(incident.faults):
        yield _line(f"    and {_count(incident.more - len(incident.faults), 'fault')} more")
    phases = "  ".join(f"{phase} {_ms(seconds)}" for phase, seconds in incident.phases.items())
    if phases:
        yield _line(f"    {phases}", "dim")


def printable(text: str) -> str:
    """The text without characters that control a terminal."""
    return "".join(c if unicodedata.category(c)[0] != "C" else "�" for c in text)


def _line(text: str, style: str = "") -> Text:
    return Text(printable(text), style)


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f}"


def _span(seconds: float) -> str:
    """About how long, in two units at most."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    if seconds < 86400:
        return f"{seconds // 3600:.0f} h {seconds % 3600 / 60:.0f} min"
    return f"{seconds // 86400:.0f} d {seconds % 86400 / 3600:.0f} h"

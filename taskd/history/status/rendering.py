"""The model as lines for a terminal of any width: the same once and live.

What is wrong comes first and alone has a strong color. Texts come from the nodes: they are printed
as they are, never as markup, and cannot control the terminal.
"""

from __future__ import annotations

import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence

from rich.cells import cell_len
from rich.text import Text

from taskd.history.facts import named, rate
from taskd.history.status.model import UNDER_WAY, Model
from taskd.messages.to_operator import IncidentSeen, Overview, RankSeen, ShrunkSeen

INCIDENTS = 5  # shown in full
BAR = 20  # characters
ALARM, WARN, QUIET = "bold red", "bold yellow", "dim"
STATES = {"repairing": ALARM, "silent": ALARM, "paused": WARN, "voting": WARN, "training": "green"}
RANKS = {  # by state
    **dict.fromkeys(("hung", "dead", "lost", "missing", "evicted"), ALARM),
    **dict.fromkeys(("slow", "late", "stopped", "away"), WARN),
    "replaced": "cyan",
}
# a step that takes so many times as long as usual, and so many seconds, is worth a line
LONG, LEAST = 3.0, 2.0
When = Callable[[float], str]


def clock(seconds: float) -> str:
    """Unix time as the reader's own clock has it."""
    return time.strftime("%m-%d %H:%M:%S", time.localtime(seconds))


def render(model: Model, when: When = clock) -> list[Text]:
    """Everything that is known, the most important first. `when`: writes a Unix time."""
    lines = [*head(model, when), *wrong(model, when)]
    if not model.over:
        lines += ranks(model, sorted_by_need(model.ranks))
    lines += incidents(model, when)
    if model.seen.place is not None:
        lines += place(model)
    return lines


# -- the job ---------------------------------------------------------------------------------------


def head(model: Model, when: When = clock) -> Iterator[Text]:
    """What the job is and how far it has come."""
    seen = model.seen
    state = "over" if model.over else seen.state
    first = Text(f"job {printable(seen.job)}  ", "bold")
    first.append(state, STATES.get(state, "bold"))
    facts = [f"{count(seen.nodes, 'node')}, {count(seen.ranks, 'rank')}"]
    hosts = {rank.host for rank in model.ranks} - {""}
    if len(hosts) == 1 and seen.nodes == 1:
        facts.append(f"host {printable(next(iter(hosts)))}")
    if seen.standbys:
        facts.append(count(seen.standbys, "standby", "standbys"))
    if seen.generation:
        facts.append(f"generation {seen.generation}")
    facts.append(f"term {seen.term}")
    first.append(f"  {', '.join(facts)}", QUIET)
    yield first
    if model.source == "journal":
        yield line(f"from {model.where}, last written {span(model.age)} ago", QUIET)
    if model.end is not None:
        word, style = ("well", "green") if model.end.ok else ("with an error", ALARM)
        yield line(f"{when(model.end.time)}  ended {word}: {model.end.reason}", style)
    if seen.step >= 0:
        yield from _steps(seen, model.source == "manager" and not model.over)
    if seen.phases and not model.over and len(model.ranks) < seen.ranks:
        yield line(f"ranks: {', '.join(f'{n} {phase}' for phase, n in seen.phases.items())}", QUIET)


def _steps(seen: Overview, now: bool) -> Iterator[Text]:
    """`now`: the job is running, so recent rates can be extrapolated."""
    ahead = f" to {seen.highest}" if seen.highest > seen.step else ""
    said = [f"step {seen.step}{ahead}" + (f" of {seen.total}" if seen.total else "")]
    if seen.rate and now:
        said.append(rate(seen.rate))
    if seen.total and seen.rate and now and seen.step < seen.total:
        said.append(f"{span((seen.total - seen.step) * 60 / seen.rate)} left")
    if seen.usual:
        said.append(f"{seen.usual:.3g} s/step")
    if seen.memory:
        said.append(f"records {-(-seen.memory >> 20)} MiB a node")
    if seen.heard > 10:
        said.append(f"as of {span(seen.heard)} ago")
    text = Text()
    if seen.total:
        share = min(seen.step / seen.total, 1.0)
        done = int(share * BAR)
        text.append("━" * done, "green").append("━" * (BAR - done), QUIET)
        text.append(f" {int(share * 100)}%  ")
    yield text.append(", ".join(said))


def place(model: Model) -> Iterator[Text]:
    """Where the job is found."""
    found = model.seen.place
    if found is None:
        return
    at = f"port {found.port}, pid {found.pid}" + (f" on {found.host}" if found.host else "")
    if model.source == "manager":
        yield line(f"manager: {model.where} ({at})", QUIET)
    elif found.port:
        yield line(f"last manager: {at}", QUIET)
    yield line(f"logs: {found.logs}", QUIET)
    yield line(f"journal: {found.journal}", QUIET)


# -- what is wrong ---------------------------------------------------------------------------------


def wrong(model: Model, when: When = clock) -> Iterator[Text]:
    """What needs somebody's attention, the worst first; nothing while all is well."""
    seen = model.seen
    if model.over:
        return
    if model.source == "journal":
        yield line(seen.detail, ALARM)
    under_way = [i for i in model.incidents if i.result == UNDER_WAY]
    for incident in under_way[-1:]:
        yield from _current(incident, when)
    if seen.state in ("starting", "paused", "voting"):
        yield line(seen.detail, STATES.get(seen.state, ""))
    age = seen.time - seen.heard - seen.came if seen.came else 0.0
    if seen.state == "training" and seen.usual and age > max(LONG * seen.usual, LEAST):
        usual = f"a step usually takes {seen.usual:.3g} s"
        yield line(f"no new step for {age:.1f} s; {usual}", WARN)
    if not seen.repairs:
        yield line("recovery is paused (process-recover-enable): the next fault ends the job", WARN)
    if seen.shrunk is not None:
        yield line(_shrunk(seen.shrunk, when), WARN)
    for node in seen.troubled:
        yield line(f"node {node.node}: {node.state}", ALARM)
    if (more := seen.troubles - len(seen.troubled)) > 0:
        yield line(f"and {count(more, 'node')} more that do not run", ALARM)


def _current(incident: IncidentSeen, when: When) -> Iterator[Text]:
    """The incident under way: what failed, and what is done about it."""
    since = f"INCIDENT {incident.incident} for {span(incident.seconds)}"
    faults = list(incident.faults) or ["?"]
    yield line(f"{since}: {faults[0]}", ALARM)
    for fault in faults[1:]:
        yield line(f"  and {fault}", ALARM)
    if incident.more > len(faults):
        yield line(f"  and {count(incident.more - len(faults), 'fault')} more", ALARM)
    now = incident.phases.get(incident.phase, 0.0)
    doing = f"  {incident.strategy or 'no strategy yet'}, {incident.phase} for {span(now)}"
    round_ = f", round {incident.round}" if incident.round > 1 else ""
    yield line(f"{doing}{round_}; since {when(incident.began)}{_replaced(incident)}", WARN)


def _shrunk(shrunk: ShrunkSeen, when: When) -> str:
    since = f" since {when(shrunk.since)}" if shrunk.since else ""
    times = count(shrunk.shares, "time")
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


# -- ranks -----------------------------------------------------------------------------------------


def sorted_by_need(found: Iterable[RankSeen]) -> list[RankSeen]:
    """Those that are not well first."""
    order = {state: at for at, state in enumerate(RANKS)}
    return sorted(found, key=lambda r: (order.get(r.state, len(order)), r.rank))


def ranks(model: Model, shown: Sequence[RankSeen]) -> Iterator[Text]:
    """A table of these ranks, with the reason under each that is not well."""
    seen, everybody = model.seen, model.ranks
    if shown:
        yield from _table(shown, everybody, seen.nodes > 1)
    if model.source == "manager" and len(everybody) < seen.ranks:
        bad = sum(rank.state != "well" for rank in everybody)
        if seen.unwell > bad:
            yield line(f"and {count(seen.unwell - bad, 'rank')} more that are not well", ALARM)
        if seen.ranks > seen.unwell:
            others = "the other " if seen.unwell else "all "
            yield line(f"{others}{count(seen.ranks - seen.unwell, 'rank')} are well", QUIET)


def _table(shown: Sequence[RankSeen], everybody: Sequence[RankSeen], hosts: bool) -> Iterator[Text]:
    """`hosts`: there are several. Columns that say nothing about anybody are left out."""
    columns: list[tuple[str, bool, Callable[[RankSeen], str]]] = [
        ("rank", True, lambda r: str(r.rank)),
        ("state", False, lambda r: r.state),
    ]
    if hosts:
        columns += [
            ("node", True, lambda r: str(r.node) if r.node >= 0 else ""),
            ("host", False, lambda r: r.host[:20]),
        ]
    columns.append(("pid", True, lambda r: str(r.pid or "")))
    if any(r.device for r in everybody):
        columns.append(("device", False, lambda r: r.device))
    columns += [
        ("process", True, lambda r: str(r.incarnation)),
        ("step", True, lambda r: str(r.step) if r.phase else ""),
        ("phase", False, lambda r: r.phase),
        ("s/step", True, lambda r: f"{r.usual:.3g}" if r.usual else ""),
    ]
    rows = [[printable(text(rank)) for _, _, text in columns] for rank in shown]
    names = [name for name, _, _ in columns]
    widths = [max(map(cell_len, cells)) for cells in zip(names, *rows, strict=True)]
    yield _row(names, widths, columns, QUIET)
    for rank, row in zip(shown, rows, strict=True):
        style = RANKS.get(rank.state, "")
        yield _row(row, widths, columns, style)
        if rank.why:
            yield line(f"      {rank.why}", style)


def _row(
    cells: Iterable[str],
    widths: Iterable[int],
    columns: Iterable[tuple[str, bool, Callable[[RankSeen], str]]],
    style: str,
) -> Text:
    padded = [
        " " * (width - cell_len(cell)) + cell if right else cell + " " * (width - cell_len(cell))
        for cell, width, (_, right, _) in zip(cells, widths, columns, strict=True)
    ]
    return Text("  ".join(padded).rstrip(), style)


# -- incidents -------------------------------------------------------------------------------------


def incidents(model: Model, when: When = clock, most: int = INCIDENTS) -> Iterator[Text]:
    """Those that are over, the newest last, of the last `most`; in full."""
    over = [i for i in model.incidents if model.over or i.result != UNDER_WAY]
    shown = over[-most:] if most else []
    if not model.more:
        yield line("no incidents", QUIET)
        return
    if (more := model.more - (len(model.incidents) - len(over)) - len(shown)) > 0:
        yield line(f"{count(more, 'earlier incident')}, see --json", QUIET)
    for incident in shown:
        yield from _incident(incident, when)


def _incident(incident: IncidentSeen, when: When) -> Iterator[Text]:
    """Three lines or more, which fit any terminal; a table of so many columns does not."""
    yield summary(incident, when)
    for fault in incident.faults:
        yield line(f"    {fault}", QUIET)
    if incident.more > len(incident.faults):
        yield line(f"    and {count(incident.more - len(incident.faults), 'fault')} more", QUIET)
    phases = "  ".join(f"{phase} {_ms(seconds)}" for phase, seconds in incident.phases.items())
    if phases:
        yield line(f"    {phases}", QUIET)


def summary(incident: IncidentSeen, when: When = clock) -> Text:
    """An incident in one line."""
    head = Text(f"{when(incident.began)}  incident {incident.incident}  ")
    style = "" if incident.result == "repaired" else WARN
    head.append(f"{printable(incident.strategy)}  {printable(incident.result)}", style)
    head.append(f"  {_ms(incident.seconds)} ms")
    if incident.step >= 0:
        repeated = max(incident.reached - incident.step, 0)
        head.append(f"  step {incident.step}, {count(repeated, 'step')} repeated")
    return head.append(_replaced(incident))


def brief(incident: IncidentSeen, when: When = clock) -> Text:
    """An incident in one short line, with what failed."""
    text = f"{when(incident.began)}  incident {incident.incident} {incident.result} in"
    style = QUIET if incident.result == "repaired" else WARN
    return line(f"{text} {span(incident.seconds)}: {(*incident.faults, '?')[0]}", style)


def _replaced(incident: IncidentSeen) -> str:
    if not incident.replaced:
        return ""
    ranks = ",".join(map(str, incident.ranks))
    left = incident.replaced - len(incident.ranks)
    more = f" and {left} more" if left > 0 else ""
    return f"  replaced: {'rank' if incident.replaced == 1 else 'ranks'} {ranks}{more}"


# -- words -----------------------------------------------------------------------------------------


def printable(text: str) -> str:
    """The text without characters that control a terminal."""
    if text.isprintable():
        return text
    return "".join(c if unicodedata.category(c)[0] != "C" else "�" for c in text)


def line(text: str, style: str = "") -> Text:
    return Text(printable(text), style)


def count(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f}"


def span(seconds: float) -> str:
    """About how long, in two units at most."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    if seconds < 86400:
        return f"{seconds // 3600:.0f} h {seconds % 3600 / 60:.0f} min"
    return f"{seconds // 86400:.0f} d {seconds % 86400 / 3600:.0f} h"

"""Figures: their medians, tables that are readable in a terminal of 80 columns and in a pipe, and
where they were measured."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import platform
import statistics
import sys
import textwrap
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

LOAD = os.getloadavg()[0]  # before the benchmark
NAME = 24  # least width of a row's words before it becomes a paragraph


class Figures(Table):
    """A table that never wraps figures (columns with `right`); words wrap where room is short. If
    there is too little room, each row becomes a paragraph."""

    def __init__(self, title: str, *columns: str, words: int = 1) -> None:
        """`words`: how many of the first columns are not figures."""
        super().__init__(title=title, box=None, pad_edge=False, title_justify="left")
        for i, head in enumerate(columns):
            self.add_column(head, justify="left" if i < words else "right", no_wrap=i >= words)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for column in self.columns:
            longest = max((_width(console, cell) for cell in column.cells), default=0)
            if column.no_wrap:
                words = str(column.header).split()
                column.min_width = max([longest, *map(len, words)])
                column.header = "\n".join(textwrap.wrap(" ".join(words), column.min_width))
            else:
                column.min_width = min(NAME, longest)
        for gap in (2, 1):
            self.padding = (0, gap, 0, 0)
            needed = sum((column.min_width or 0) + gap for column in self.columns) - gap
            if needed <= options.max_width:
                yield from super().__rich_console__(console, options)
                return
        yield from self._paragraphs()

    def _paragraphs(self) -> RenderResult:
        yield Text.from_markup(str(self.title), style="table.title")
        heads = [" ".join(str(column.header).split()) for column in self.columns]
        for cells in zip(*(column.cells for column in self.columns), strict=True):
            yield _text(cells[0])
            parts = [
                Text.assemble(f"{head} ", _text(cell))
                for head, cell in zip(heads[1:], cells[1:], strict=True)
                if _text(cell).plain
            ]
            yield Padding(Text("; ").join(parts), (0, 0, 0, 4))


def _text(cell: Any) -> Text:
    return cell.copy() if isinstance(cell, Text) else Text.from_markup(str(cell))


def _width(console: Console, cell: Any) -> int:
    return console.measure(_text(cell)).maximum


def summary(values: Sequence[float]) -> dict[str, float]:
    """All 0 if there are no values, as of faults that were all not survived."""
    ordered = sorted(values) or [0.0]
    return {
        "count": len(values),
        "median": statistics.median(ordered),
        "least": ordered[0],
        "p90": ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))],
        "worst": ordered[-1],
    }


def ms(value: float) -> str:
    return f"{value * 1e3:.1f}" if abs(value) < 1 else f"{value * 1e3:,.0f}"


def spread(values: Sequence[float]) -> list[str]:
    """Median, least, 90 % and worst of seconds, in ms."""
    found = summary(values)
    return [ms(found[k]) for k in ("median", "least", "p90", "worst")]


def machine() -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )
    versions = {}
    for name in ("torch", "mindspore"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        **versions,
        "load": [LOAD, os.getloadavg()[0]],
    }


def publish(path: Path | None, *shown: Any, **found: Any) -> None:
    """Print tables and sentences, and when and where that was measured; write the single figures to
    `path`."""
    console, here, date = Console(), machine(), time.strftime("%Y-%m-%d")
    for item in shown:
        console.print(item, highlight=False)
    load = " to ".join(f"{load:.1f}" for load in here["load"])
    text = f"{date}, {here['cores']} cores of {here['cpu']}, load average {load}"
    console.print(f"{text}: {' '.join(sys.argv)}", style="dim", highlight=False, markup=False)
    if path is not None:
        told = {"date": date, "command": sys.argv, "machine": here, **found}
        path.write_text(json.dumps(told, indent=1, default=dataclasses.asdict) + "\n")

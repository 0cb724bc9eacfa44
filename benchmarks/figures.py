"""Tables of figures that are readable in a terminal of 80 columns and in a pipe."""

from __future__ import annotations

import textwrap
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

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

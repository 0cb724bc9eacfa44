"""The model on a screen of some size, and what the keys do. Pure: taskd/cli/live.py reads the keys
and draws the lines."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from rich.text import Text

from taskd.history.status.model import Model
from taskd.history.status.rendering import (
    QUIET,
    brief,
    clock,
    head,
    incidents,
    line,
    ranks,
    sorted_by_need,
    wrong,
)
from taskd.messages.to_operator import RankSeen

HINTS = "q quit  a all ranks  i incidents  / filter  space, b page"
ROWS = 5  # of one long line
PAST = 3  # incidents below the ranks


@dataclass(frozen=True)
class View:
    """What the reader has chosen. `every`: all ranks of a large job, not just those that are not
    well. `words`: of which each must be in the text about a rank. `typing`: these are being
    entered. `page`: pages are as long as the screen allows."""

    every: bool = False
    past: bool = False
    words: str = ""
    typing: bool = False
    page: int = 0

    @property
    def wants_all(self) -> bool:
        """Whether all ranks are needed."""
        return self.every or bool(self.words)

    def key(self, key: str) -> View | None:
        """The view after that key: a character, or one of "up", "down", "enter", "escape",
        "delete". None: the reader leaves."""
        if self.typing:
            return self._typed(key)
        if key in ("q", "\x03", "\x04"):
            return None
        if key in (" ", "down", "j"):
            return replace(self, page=self.page + 1)
        if key in ("b", "up", "k"):
            return replace(self, page=max(self.page - 1, 0))
        if key == "a":
            return replace(self, every=not self.every, past=False, page=0)
        if key == "i":
            return replace(self, past=not self.past, page=0)
        if key == "/":
            return replace(self, typing=True, past=False, page=0)
        return View() if key == "escape" else self

    def _typed(self, key: str) -> View | None:
        if key == "\x03":
            return None
        if key == "enter":
            return replace(self, typing=False)
        if key == "escape":
            return replace(self, typing=False, words="")
        if key == "delete":
            return replace(self, words=self.words[:-1])
        return replace(self, words=(self.words + key)[:100]) if len(key) == 1 else self


def screen(model: Model, view: View, width: int, height: int) -> tuple[list[Text], View]:
    """At most `height` lines for a screen of that width: the head, what is wrong, then as much as
    there is room for of the ranks, and of the incidents that are over. And the view at a page that
    there is."""
    top = [*head(model), *wrapped(wrong(model), width)]
    if view.past:
        body, foot = wrapped(_past(model), width), line(f"incidents  {HINTS}", QUIET)
        return _fitted(top, body, [], foot, view, height)
    shown = [r for r in sorted_by_need(model.ranks) if matches(r, view.words)]
    if not view.wants_all:
        shown = shown if len(model.ranks) == model.seen.ranks else _not_well(shown)
    body = wrapped(ranks(model, shown), width) if not model.over else []
    if view.words and not shown:
        body = [line(f"no rank has {view.words!r}")]
    below = [brief(i) for i in model.incidents[-PAST:] if i.result != "under way"]
    if not model.more:
        below = list(incidents(model))
    if view.typing:
        foot = line(f"filter: {view.words}█  Enter to keep, Esc to clear")
    elif view.words:
        foot = line(f"filter: {view.words}  Esc clears it  {HINTS}", QUIET)
    else:
        foot = line(HINTS, QUIET)
    return _fitted(top, body, below, foot, view, height)


def _fitted(
    top: Sequence[Text],
    body: Sequence[Text],
    below: Sequence[Text],
    foot: Text,
    view: View,
    height: int,
) -> tuple[list[Text], View]:
    """`body` by pages; its first line, a header, is on each."""
    lines = list(top[: max(height - 1, 0)])
    room = height - len(lines) - 1
    below = below[-max(room // 3, 0) :] if room >= 3 else []
    room -= len(below)
    if len(body) > room > 1:
        header, rows = body[:1], body[1:]
        size = room - 1
        pages = -(-len(rows) // size)
        at = min(view.page, pages - 1)
        lines += [*header, *rows[at * size : (at + 1) * size]]
        foot = Text.assemble((f"page {at + 1} of {pages}  ", "bold"), foot)
    else:
        at = 0
        lines += body[: max(room, 0)]
    return [*lines, *below, foot][:height], replace(view, page=at)


def wrapped(lines: Iterable[Text], width: int) -> list[Text]:
    """Lines of one style that are too long as several, below one another."""
    found: list[Text] = []
    for text in lines:
        if text.spans or text.cell_len <= width:
            found.append(text)
            continue
        indent = " " * (len(text.plain) - len(text.plain.lstrip()) + 2)
        parts = textwrap.wrap(text.plain, max(width, 20), subsequent_indent=indent)
        found += [Text(part, text.style) for part in parts[:ROWS]]
    return found


def _past(model: Model) -> list[Text]:
    """All incidents that are kept, the newest first."""
    newest = replace(model, incidents=tuple(reversed(model.incidents)))
    return [line("newest first", QUIET), *incidents(newest, clock, len(model.incidents))]


def _not_well(found: Sequence[RankSeen]) -> list[RankSeen]:
    return [rank for rank in found if rank.state != "well"]


def matches(rank: RankSeen, words: str) -> bool:
    """Whether each of the words is in a rank's row: its number, host, pid, state, ..."""
    known = f"rank{rank.rank} {rank.rank} node{rank.node} {rank.host} {rank.pid} {rank.device}"
    text = f"{known} {rank.phase} {rank.state} {rank.why}".lower()
    return all(word in text for word in words.lower().split())

"""Loops over `job.epochs`: a replacement begins with the epoch in which its predecessor was.

It runs the script from the beginning. In another loop around its passes it would go through what
the script does between two of them once more, for each that is over, without their steps. Here it
leaves out the epochs that are over: plain variables, results of the set-up and the number of passes
are put to where that epoch began.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

from taskd.worker.discovery import between
from taskd.worker.repair.session import RepairSession
from taskd.worker.set_up import functions as set_up
from taskd.worker.set_up.results import EPOCH, MARK
from taskd.worker.state import plain
from taskd.worker.state.given import WouldDiverge
from taskd.worker.training.cursor import Cursor, Epoch
from taskd.worker.training.rejoin import NOWHERE, Rejoin

OVER = -1  # instead of the number of an epoch
MOST = 64 << 10  # bytes of what loops leave, in each record
LONGEST = 100  # characters of an epoch's item that are compared
BETWEEN = (
    "stands between two passes of the loop: a replacement, and a job that goes on from a dump, run"
    " it again for each pass that is over, without its steps."
)
ABANDONED = (
    "the script has left an attempt by an exception, caught it outside of the loop and goes on with"
    " another pass: the step has no end, so it cannot be compared or repeated. Catch the exception"
    " inside the attempt, or leave the loop by break once the attempt has ended"
)
AROUND = "Let the loop around them be `for epoch in job.epochs(...)`"
SINGLE = "Let taskd.once(function) run it: a replacement is given what it returned"


class Epochs:
    """One rank's loops over job.epochs, and what its other loops leave. `inside`: the script is in
    job.epochs."""

    def __init__(self, session: RepairSession, cursor: Cursor, rejoin: Rejoin) -> None:
        self._session, self._cursor, self._rejoin = session, cursor, rejoin
        self._present = Epoch()
        self._loops = 0  # that have begun
        self.inside = False
        self._before: between.Values = {}  # as the loop began
        self._bound: dict[str, set[str]] = {}  # by frame, as it began its first pass
        self._said = False
        # the loop that the script has left, unless it ends by an exception: a pass, with where it
        # was asked for, or a loop over job.epochs, with the results that the set-up had then
        self._left: tuple[int, between.Site | None, int, between.Values] | None = None

    def over(self, items: Iterable[Any]) -> Iterator[Any]:
        """Yield the item of each epoch. Raises RuntimeError inside another such loop."""
        if self.inside:
            raise RuntimeError(
                "job.epochs() inside a loop over job.epochs(): a replacement could not tell which"
                " epoch of the inner one it is in. Use range() for the inner one"
            )
        self._begins(None)
        self._loops, self.inside = self._loops + 1, True
        self._before = between.variables()
        at = self._ahead()
        try:
            if at is not None and (at.loop, at.index == OVER) >= (self._loops, True):
                self._begin(OVER)
                between.put(at.left.get(-self._loops, {}))
                return
            for index, item in enumerate(items):
                at = self._ahead()
                if at is None or (at.loop, at.index) <= (self._loops, index):
                    self._cursor.item = _shown(item)
                    self._begin(index)
                    yield item
            self._leave()
        except GeneratorExit:
            self._leave()
            raise
        finally:
            self.inside, self._cursor.item = False, ""

    def pass_begins(self, abandoned: bool) -> None:
        """Raises WouldDiverge where code between two passes is refused, or the script has
        `abandoned` an attempt."""
        if abandoned:
            raise WouldDiverge(ABANDONED)
        if self.inside:
            self._bound = between.bound() | self._bound
            return
        site, last = between.site(), self._left[1] if self._left is not None else None
        self._begins(site)
        if self._cursor.pass_number and not self._cursor.calls and not self._said:
            where, inside = between.code(last)
            self._said = bool(where)
            if where:
                remedy = AROUND if inside else SINGLE
                self._session.variables.say([f"{where} {BETWEEN} {remedy}"])

    def pass_ends(self) -> None:
        """Variables that had no value when passes began, such as the last loss, are recorded."""
        values = between.variables(self._bound)
        self._cursor.ends = plain.encode(values) if values else b""
        if not self.inside:
            self._left = self._cursor.pass_number, between.site(), 0, values

    def joins(self, ends: bytes) -> None:
        """This process is in the pass of the previous one, which had ended it with these `ends`."""
        self._present = self._rejoin.epoch
        if ends:
            between.put(plain.decode(ends))

    def skips(self) -> None:
        """This process skips a pass."""
        if not self.inside and (at := self._ahead()) is not None:
            between.put(at.left.get(self._cursor.pass_number, {}))

    def _ahead(self) -> Epoch | None:
        """The previous process's place, as long as this one is not there."""
        return self._rejoin.epoch if self._rejoin.target != NOWHERE else None

    def _leave(self) -> None:
        if not sys.is_finalizing():
            self._left = -self._loops, None, set_up.made(), self._changed()

    def _begins(self, site: between.Site | None) -> None:
        """The script goes on to a loop, or to the next pass of the same."""
        self._bound = between.bound() | self._bound
        left, self._left = self._left, None
        if left is None or left[1] == site is not None:
            return
        number, _, made, values = left
        known = self._present.left
        if sum(map(_size, known.values())) + _size(values) <= MOST:
            known[number] = values
        if number < 0:
            self._begin(OVER, made)
        else:
            self._cursor.epoch = self._present.encode()

    def _changed(self) -> between.Values:
        return between.changed(between.variables(), self._before)

    def _begin(self, index: int, made: int | None = None) -> None:
        """Begin an epoch, or come to where the previous process had begun it. OVER: the loop has
        been left, when there were `made` results."""
        cursor, random, at = self._cursor, self._session.random, self._ahead()
        there = at if at is not None and (at.loop, at.index) == (self._loops, index) else None
        if there is not None:
            cursor.pass_number = there.first
            between.put(there.values)
            random.restore(there.random)
        set_up.epoch(f"{MARK}{self._loops}{EPOCH}{index}", at is not None, made)
        values = there.values if there is not None else {} if index == OVER else self._changed()
        left = at.left if at is not None else self._present.left
        now = Epoch(self._loops, index, cursor.pass_number, values, random.snapshot(), left)
        self._present, cursor.epoch = now, now.encode()


def _size(values: between.Values) -> int:
    return sum(len(data) for held in values.values() for data, _ in held.values())


def numbered(items: int | Iterable[Any]) -> Iterable[Any]:
    """What is given to job.epochs. Raises ValueError."""
    if not isinstance(items, int):
        return items
    if type(items) is not int or items < 0:
        raise ValueError(f"epochs({items!r}): their number must be an int of at least 0")
    return range(items)


def _shown(item: Any) -> str:
    """What plans have of it."""
    text = str(item)[:LONGEST] if type(item) in (int, str) else ""
    return f", epoch {text}" if text else ""

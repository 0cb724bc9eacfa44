"""Loops over `job.epochs`: a replacement begins with the epoch in which its predecessor was.

It runs the script from the beginning. In another loop around its passes it would go through what
the script does between two of them once more, for each that is over, without their steps. Here it
leaves out the epochs that are over: plain variables, results of the set-up and the number of passes
are put to where that epoch began.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from taskd.worker.discovery import between
from taskd.worker.repair.session import RepairSession
from taskd.worker.set_up import functions as set_up
from taskd.worker.set_up.results import EPOCH, MARK
from taskd.worker.state import plain
from taskd.worker.state.given import WouldDiverge
from taskd.worker.state.part import Content
from taskd.worker.state.small_state import Groups, Object
from taskd.worker.training.cursor import Cursor, Epoch
from taskd.worker.training.rejoin import NOWHERE, Rejoin

OVER = -1  # instead of the number of an epoch
MOST = 64 << 10  # bytes of what loops leave, in each record
LONGEST = 100  # characters of an epoch's item that are compared
NESTED = (
    "job.epochs() inside a loop over job.epochs(): a replacement could not tell which epoch of the"
    " inner one it is in. Use range() for the inner one"
)
RESTARTING = (
    "job.epochs() inside {0}(): a replacement starts at a later epoch, where {0}() would start"
    " over. Put job.epochs() outside: `for i, rate in job.epochs(list(enumerate(rates)))`"
)
BETWEEN = (
    "runs between two passes of the loop: a replacement, or a job resumed from a dump, runs it"
    " again for each finished pass, without that pass's steps."
)
ABANDONED = (
    "an exception left an attempt, the script caught it outside the loop, and now starts another"
    " pass: that step never ended, so it cannot be compared or repeated. Catch the exception inside"
    " the attempt, or break out of the loop after the attempt has ended"
)
AROUND = "Use `for epoch in job.epochs(...)` for the outer loop"
SINGLE = "Wrap it in taskd.once(): a replacement then gets the recorded result"


class Epochs:
    """One rank's loops over job.epochs, and what its other loops leave. `inside`: the script is in
    job.epochs."""

    def __init__(self, session: RepairSession, cursor: Cursor, rejoin: Rejoin) -> None:
        self._session, self._cursor, self._rejoin = session, cursor, rejoin
        self._present = Epoch()
        self._loops = 0  # that have begun
        self.inside = False
        self._for: between.Loop | None = None
        self._before: between.Values = {}  # as the loop began
        self._bound: dict[str, set[str]] = {}  # by frame, as it began its first pass
        self._said = False
        # the loop that the script has left, unless it ends by an exception: a pass, with where it
        # was asked for, or a loop over job.epochs, with the results that the set-up had then
        self._left: tuple[int, between.Site | None, int, between.Values] | None = None

    def over(self, items: Iterable[Any]) -> Iterator[Any]:
        """Yield the item of each epoch. Raises RuntimeError inside another such loop, or a call
        that would begin anew."""
        self._look_outside()
        if self.inside:
            raise RuntimeError(NESTED)
        loop = between.loop()
        if loop is not None and loop.restarting:
            raise RuntimeError(RESTARTING.format(loop.restarting))
        self._begins(None)
        self._loops, self.inside, self._for = self._loops + 1, True, loop
        number, self._before = self._loops, between.variables()
        at = self._ahead()
        try:
            if at is not None and (at.loop, at.index == OVER) >= (number, True):
                self._begin(OVER)
                between.put(at.left.get(-number, {}))
                self.inside = False
                return
            for index, item in enumerate(items):
                at = self._ahead()
                if at is None or (at.loop, at.index) <= (number, index):
                    self._cursor.item = _shown(item)
                    self._begin(index)
                    yield item
        finally:
            if self.inside and self._loops == number:
                self._leave()

    def pass_begins(self, abandoned: bool) -> None:
        """Raises WouldDiverge where code between two passes is refused, or the script has
        `abandoned` an attempt."""
        if abandoned:
            raise WouldDiverge(ABANDONED)
        self._look_outside()
        site, last = between.site(), self._left[1] if self._left is not None else None
        self._begins(site)
        if self._cursor.pass_number and not self._cursor.calls and not self._said:
            where, around = between.code(last, around=not self.inside)
            self._said = bool(where)
            if where:
                remedy = AROUND if around else SINGLE
                self._session.variables.say([f"the code at {where} {BETWEEN} {remedy}"])
        if self.inside:
            self._keep(replace(self._present, begun=self._changed()))

    def pass_ends(self) -> None:
        """Variables that had no value when passes began, such as the last loss, are recorded."""
        values = between.variables(self._bound)
        self._cursor.ends = plain.encode(values) if values else b""
        self._left = self._cursor.pass_number, between.site(), 0, values

    def joins(self, ends: bytes) -> None:
        """This process is in the pass of the previous one, which had ended it with these `ends`."""
        self._keep(self._rejoin.epoch)
        # but for what the repair has restored
        between.put(self._present.begun, {p.variable for p in self._session.variables.places})
        if ends:
            between.put(plain.decode(ends))

    def skips(self) -> None:
        """This process skips a pass."""
        if (at := self._ahead()) is not None:
            between.put(at.left.get(self._cursor.pass_number, {}))

    def _ahead(self) -> Epoch | None:
        """The previous process's place, as long as this one is not there."""
        return self._rejoin.epoch if self._rejoin.target != NOWHERE else None

    def _look_outside(self) -> None:
        """The script may have left a loop whose iterator it keeps."""
        if self.inside and self._for is not None and not self._for.runs():
            self._leave()

    def _leave(self) -> None:
        self.inside, self._cursor.item, self._for = False, "", None
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
        known[number] = values
        while sum(map(_size, known.values())) > MOST:
            del known[next(iter(known))]
        if number < 0:
            self._begin(OVER, made)
        else:
            self._keep(self._present)

    def _changed(self) -> between.Values:
        return between.changed(between.variables(), self._before)

    def _begin(self, index: int, made: int | None = None) -> None:
        """Begin an epoch, or come to where the previous process had begun it. OVER: the loop has
        been left, when there were `made` results."""
        cursor, session, at = self._cursor, self._session, self._ahead()
        there = at if at is not None and (at.loop, at.index) == (self._loops, index) else None
        set_up.epoch(f"{MARK}{self._loops}{EPOCH}{index}", at is not None, made)
        if there is not None:
            cursor.pass_number = there.first
            between.put(there.values)
            session.random.restore(there.random)
            for part in session.state.parts:
                if part.name in there.small:
                    part.put(Content(there.small[part.name]))
            self._keep(there)
            return
        was, left = self._present, (at or self._present).left
        if was.loop == self._loops and was.index != OVER:  # of passes of the epoch before
            self._left, left = None, {n: held for n, held in left.items() if n < was.first}
        values, small = ({}, {}) if index == OVER else (self._changed(), self._small())
        random = session.random.snapshot()
        first = cursor.pass_number
        self._keep(Epoch(self._loops, index, first, values, random, small, left=left))

    def _small(self) -> dict[str, bytes]:
        """What an epoch may read as it begins: learning rates, schedulers."""
        found: dict[str, bytes] = {}
        for part in self._session.state.parts:
            if isinstance(part, (Groups, Object)):
                with contextlib.suppress(plain.Unrecordable):
                    value = part.value() if isinstance(part, Groups) else part.holder.state_dict()
                    if between.room(value, MOST) >= 0:
                        found[part.name] = plain.encode(value)
        return found

    def _keep(self, epoch: Epoch) -> None:
        self._present, self._cursor.epoch = epoch, epoch.encode()


def _size(values: between.Values) -> int:
    return sum(len(data) for held in values.values() for data, *_ in held.values())


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

"""The variables that a script's loop carries from step to step, restored with everything else.

`liveness.py` finds them in the source of the loop that asks for the first attempt, before that
attempt begins: a prefetched batch, a running mean, the best loss so far. They are read and written
in place (a frame, a module, a closure, an object of the script), so the script does not notice.
Variables that cannot be recorded are named in the log.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from taskd import raised
from taskd.worker.discovery import frames, reach, syntax
from taskd.worker.discovery.liveness import Analysis
from taskd.worker.discovery.members import content_of
from taskd.worker.discovery.script import (
    Own,
    frames_of,
    is_constant,
    is_container,
    is_drawn,
    is_shared,
)
from taskd.worker.discovery.syntax import Unknown
from taskd.worker.discovery.values import (
    ITEMS,
    LONGEST,
    SCALARS,
    NotRecordable,
    describes_itself,
    is_changeable,
    is_same,
    recordable,
)
from taskd.worker.discovery.variables import Key, Scope
from taskd.worker.state import plain
from taskd.worker.state.given import Unwanted
from taskd.worker.state.stored_attributes import (
    MISSING,
    Exchanges,
    into,
    like,
    put_attribute,
    stored,
    value_of_attribute,
)

log = logging.getLogger("taskd.worker")

NAME = "(variables of the loop)"  # among the small objects
RANGES = " in a loop where "  # before `LoopVariables.ranges` in a plan

KEEP = (
    "it is read in a step before it is assigned, and is not restored: after a repair it may have"
    " another value. Keep it in a dict, list or tensor that is given to protect() and changed in"
    " place, or assign it inside the attempt before it is read"
)
GROWN = (
    "it is not copied in every step and not restored: after a repair it may hold something else."
    " Keep less of it, or give it to protect(), which copies it whatever it costs"
)
DRAWN = (
    "the script draws from it by itself, so a repeated step gets something else: draw with next()"
    " inside the attempt from job.iterate(source), or loop over job.batches(loader)"
)
CALLS = (
    "it is carried from one job.call to the next, and is not restored there: after a repair it may"
    " have another value. Keep it in a dict, list or tensor that is given to protect() and changed"
    " inside the function"
)
READ = (
    "the function of job.call reads it, and it is assigned between two calls: a call that is"
    " repeated may read the value of the next one. Pass it to job.call as an argument"
)
ONCE = (
    "it changes where attempt.committed is true: a repair restores it with its step, and the"
    " repeated step is not committed again, so the change is lost. Change it inside the attempt, or"
    " where attempt.done is true"
)
SHARED = (
    "it is memory that processes share, and is not restored: a step that is repeated finds there"
    " what it has already written. Keep what a step changes in a dict, list or tensor that is given"
    " to protect()"
)
UNSEEN = "variables that the loop carries on"
GIVE = (
    "they are not known, and not restored. Keep what a step reads before it assigns it in a dict,"
    " list or tensor that is given to protect() and changed in place"
)


@dataclass
class Place:
    """A variable. `code`: the code of the frame, if it is a local variable; else `get` and `put`
    reach it. `inside`: the loop does not assign it, but may change what it holds; `unbound`: it had
    no value as the loop began."""

    name: str
    variable: str
    where: str
    inside: bool
    code: types.CodeType | None = None
    unbound: bool = False
    get: Callable[[], Any] = lambda: MISSING
    put: Callable[[Any], None] = lambda value: None


class LoopVariables:
    """Records and restores the variables of the loop, by the state_dict() and load_state_dict() of
    what is given to protect(): those at `places`. `refuses`: raise Unwanted for what cannot be
    restored."""

    def __init__(self, given: Iterable[Any], refuses: bool) -> None:
        """`given`: what the script gave to protect(), restored already."""
        self._given = {id(value) for value in given}
        self._refuses = refuses
        self.places: list[Place] = []
        self.frame = 0  # id of the one that runs the loop, 0 if none does
        # loop -> its variables, and whether they had no value before it
        self._loops: dict[tuple[str, int] | None, dict[str, bool]] = {}
        self._said: set[str] = set()
        self._drawn: list[weakref.ref[Any]] = []
        self._exchanges = Exchanges()
        self.ranges = ""  # the whole numbers that the first loop begins with, after RANGES

    def attach(self, function: Callable[..., Any] | None) -> None:
        """Look at the loop that runs this. `function`: what it calls by job.call. Raises
        Unwanted."""
        try:
            loop, places, named, reads = self._search(function)
        except Unknown as error:
            self.say([f"{UNSEEN}: {error}: {GIVE}"])
            return
        except Exception as error:  # a search must not end a job
            raised.heed(error)
            log.warning("could not look for %s", UNSEEN, exc_info=True)
            self.say([f"{UNSEEN}: {type(error).__name__}: {GIVE}"])
            return
        finally:
            syntax.forget()
        if loop not in self._loops:
            known = {name for names in self._loops.values() for name in names}
            for place in places:
                if not place.inside and place.name not in known:
                    log.info("also protected: %s (%s)", place.name, place.where)
            self._loops[loop] = {place.name: place.unbound for place in places}
            self.say(named)
        self.say(reads)
        # its next pass also finds leftovers of the last one in variables that carry nothing
        self.places = [place for place in places if place.name in self._loops[loop]]

    def __bool__(self) -> bool:
        return bool(self.places)

    def say(self, texts: list[str]) -> None:
        new = [text for text in dict.fromkeys(texts) if text not in self._said]
        self._said |= set(new)
        if new and self._refuses:
            raise Unwanted(f"TASKD_CARRIED=refuse: not protected: {'; '.join(new)}")
        for text in new:
            log.warning("not protected: %s", text)

    # -- recording ---------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        seen: dict[types.CodeType, dict[str, Any]] = {}
        for place in self.places:
            value = place.get() if place.code is None else _local(place, seen)
            # without a value at first, it may be assigned in an inner loop: it is not named
            if type(value) in SCALARS and not place.unbound:
                found[place.name] = value
            elif value is not MISSING:
                try:
                    met: list[Any] = []
                    most = ITEMS if place.inside else LONGEST
                    copied = recordable(value, most, met=met)
                    if place.inside and met:
                        self._exchanges.look(place.name, met)
                    if not place.unbound or describes_itself(value):
                        found[place.name] = copied
                except NotRecordable as error:  # in each step, and it may grow in each
                    if place.name not in self._said and not place.unbound:
                        self._said.add(place.name)
                        why = GROWN if place.inside else KEEP
                        self.say([f"{place.name} ({place.where}) is {error}: {why}"])
        return found

    def objects(self) -> set[int]:
        """The ids of objects that are restored: given to protect(), or changed by the loop."""
        seen: dict[types.CodeType, dict[str, Any]] = {}
        found = [_value(place, seen) for place in self.places if place.inside]
        for place in self.places:
            if isinstance(place.get, partial) and place.get.func is value_of_attribute:
                found.append(place.get.args[0])
        plain = (*SCALARS, type(None), type(MISSING))
        return self._given | {id(value) for value in found if type(value) not in plain}

    def covered(self) -> tuple[set[int], set[tuple[int, str]]]:
        """The ids of the containers and cells that are restored, and (id, name) of attributes."""
        seen: dict[types.CodeType, dict[str, Any]] = {}
        held = {place.name: _value(place, seen) for place in self.places}
        found = reach.find([("", held)], is_container, LONGEST, is_container)
        whole, single = {id(value) for _, value in found}, set[tuple[int, str]]()
        for place in self.places:
            if isinstance(place.get, partial) and place.get.func is content_of:
                whole.add(id(place.get.args[0]))
            elif isinstance(place.get, partial) and place.get.func is value_of_attribute:
                single.add((id(stored(place.get.args[0])), place.get.args[1]))
        return whole, single

    def load_state_dict(self, values: dict[str, Any]) -> None:
        seen: dict[types.CodeType, dict[str, Any]] = {}
        changed: dict[types.CodeType, dict[str, Any]] = {}
        written: dict[int, Any] = {}
        for place in self.places:
            if place.name not in values:
                continue
            value, present = values[place.name], _value(place, seen)
            if is_same(present, value):
                continue
            if place.inside:
                met: list[Any] = []
                with contextlib.suppress(NotRecordable):
                    recordable(present, met=met)
                fresh, outer = self._exchanges.look(place.name, met), present
                value = into(outer, value, partial(_may_write, written, outer, fresh))
            else:
                value = like(present, value)
            if place.code is None:
                place.put(value)
            else:
                changed.setdefault(place.code, {})[place.variable] = value
        for code, new in changed.items():
            if (frame := frames.running(code)) is not None:
                frames.assign(frame, new)

    def drawn(self) -> list[Any]:
        """The iterators that have been named."""
        return [value for reference in self._drawn if (value := reference()) is not None]

    def tensors(self) -> Iterator[torch.Tensor]:
        """Those that are restored."""
        seen: dict[types.CodeType, dict[str, Any]] = {}
        held = {place.name: _value(place, seen) for place in self.places}
        yield from (t for _, t in reach.find([("", held)], lambda kind: kind is torch.Tensor))

    # -- looking -----------------------------------------------------------------------------------

    def _search(
        self, function: Callable[..., Any] | None
    ) -> tuple[tuple[str, int] | None, list[Place], list[str], list[str]]:
        """The loop, the variables to restore, a sentence for each carried one that cannot be, and
        for each that the function reads. Raises Unknown."""
        places: dict[str, Place] = {}
        named: list[str] = []
        reads: list[str] = []
        self.frame = 0
        ranges: set[str] = set()
        own = Own()
        analysis = Analysis(own.space, own.object, own.meter)
        for depth, (frame, begins) in enumerate(frames_of(own)):
            code = frame.f_code
            if depth and syntax.is_stub(code, frame.f_globals):
                continue
            variables = frames.variables(frame)
            named_by = {} if code.co_flags & inspect.CO_OPTIMIZED else frame.f_locals
            cells = _cells(code, [*variables.values(), function])
            scope = Scope(code, named_by, frame.f_globals, depth, variables, cells, in_loop=True)
            carried, touched = analysis.carried(scope, frame.f_lineno, begins)
            if analysis.loop is not None:
                self.frame = self.frame or id(frame)
            held = ((analysis.names[k], analysis.value(k, scope)) for k in analysis.ranges)
            ranges |= {f"{name} is {value}" for name, value in held if type(value) is int}
            for key in sorted(analysis.reads_of(function) & analysis.direct - carried):
                reads.append(f"{analysis.names[key]} (line {analysis.lines[key]}): {READ}")
            for key in sorted(carried | touched, key=lambda k: (analysis.names[k], k)):
                value, inside = analysis.value(key, scope), key not in carried
                name = analysis.names[key]
                if name in places:
                    name = f"{code.co_name}.{name}"
                # as it was before the loop's first pass: a replacement has no value for it either
                known = self._loops.get(analysis.loop)
                unbound = known.get(name, False) if known is not None else value is MISSING
                skipped = inside or function is not None if unbound else is_constant(value)
                if skipped:
                    continue
                file = Path(code.co_filename).name
                where = f"line {analysis.lines[key]} of {file}"
                if is_drawn(value) and not unbound:
                    if id(value) not in self._given:
                        named.append(f"{name} ({where}), a {type(value).__name__}: {DRAWN}")
                        with contextlib.suppress(TypeError):  # it takes no weak reference
                            self._drawn.append(weakref.ref(value))
                    continue
                if inside and is_shared(value):
                    named.append(f"{name} ({where}): {SHARED}")
                    continue
                if inside and (id(value) in self._given or not is_changeable(value)):
                    continue
                if not inside and function is not None and key in analysis.direct:
                    named.append(f"{name} ({where}): {CALLS}")
                    continue
                try:
                    # a container this long is data that the script reads
                    most = ITEMS if inside else LONGEST
                    recordable(None if unbound else value, most, most)
                except NotRecordable as error:
                    if not inside:
                        named.append(f"{name} ({where}) is {error}: {KEEP}")
                    continue
                if key in analysis.once:
                    named.append(f"{name} ({where}): {ONCE}")
                places[name] = _place(analysis, key, name, where, inside, code)
                places[name].unbound = unbound
        if not self._loops and ranges:
            self.ranges = RANGES + ", ".join(sorted(ranges))
        return analysis.loop, list(places.values()), named, reads


def _cells(code: types.CodeType, values: Iterable[Any]) -> dict[str, types.CellType]:
    """The cells of a frame's variables, as the functions that were made in it have them."""
    names = {*code.co_cellvars, *code.co_freevars}
    found: dict[str, types.CellType] = {}
    for value in values:
        if type(value) is types.FunctionType and value.__code__ in code.co_consts:
            for name, cell in zip(
                value.__code__.co_freevars, value.__closure__ or (), strict=False
            ):
                if name in names:
                    found.setdefault(name, cell)
    return found


def _place(
    analysis: Analysis, key: Key, name: str, where: str, inside: bool, code: types.CodeType
) -> Place:
    kind, number, variable = key
    if kind == "local":
        return Place(name, variable, where, inside, code=code)
    if kind == "cell":
        cell = analysis.cells[number]
        get, put = partial(content_of, cell), partial(setattr, cell, "cell_contents")
    elif kind == "global":
        space = analysis.spaces[number]
        get, put = partial(space.get, variable, MISSING), partial(space.__setitem__, variable)
    else:
        holder = analysis.objects[number]
        get = partial(value_of_attribute, holder, variable)
        put = partial(put_attribute, holder, variable)
    return Place(name, variable, where, inside, get=get, put=put)


def _may_write(written: dict[int, Any], outer: Any, fresh: bool, there: Any, value: Any) -> bool:
    """`fresh`: what is inside is made anew. One object in two places may have been two."""
    may = there is outer or not fresh
    return may and plain.same(written.setdefault(id(there), value), value)


def _value(place: Place, seen: dict[types.CodeType, dict[str, Any]]) -> Any:
    return place.get() if place.code is None else _local(place, seen)


def _local(place: Place, seen: dict[types.CodeType, dict[str, Any]]) -> Any:
    assert place.code is not None
    if place.code not in seen:
        frame = frames.running(place.code)
        seen[place.code] = frames.variables(frame) if frame is not None else {}
    return seen[place.code].get(place.variable, MISSING)

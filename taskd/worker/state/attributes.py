"""Records modules' extra state, and plain attributes of modules, of optimizers and of what these
hold (discovery/held.py) that change in training: a counter, a running mean.

Such attributes are neither buffers nor optimizer state, so no state_dict has them. Attributes that
an author put into `self` are compared with their values at `protect`. Once something has changed,
all plain attributes of the object are recorded together: a flag without the cache that it describes
is worse than neither. torch's own classes keep no state this way. Of the script's own objects
(discovery/reached.py) only what has changed is recorded: a path or a pid is its process's own.

A metric of torchmetrics is all state: tensors, and lists of them, of any size. One that outgrows
METRIC ends a job in which it would have to be restored.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any

import torch

from taskd.worker.state import places, plain
from taskd.worker.state.given import WouldDiverge
from taskd.worker.state.looks import (
    BOTH,
    BY_ID,
    CONTAINERS,
    LARGEST,
    MADE,
    METRIC,
    OUTGROWN,
    PARAMETER,
    VIEW,
    Look,
    Own,
    Space,
    is_large,
    is_object,
    is_plain,
    size,
)
from taskd.worker.state.part import Content, Values
from taskd.worker.state.small_state import say_unrecordable
from taskd.worker.state.stored_attributes import into

log = logging.getLogger("taskd.worker")

# in a record: names of the attributes that are not in it (None: none is recorded), of those of the
# script's objects that are values, and what those that change as data are drawn had as the pass
# began
OTHERS, LARGE, DRAWN = "", " ", "  "
_NO_NAMES = (OTHERS, LARGE, DRAWN)
UNKNOWN = "\0"  # as the pass began

_BASE = frozenset(torch.nn.Module().__dict__)
# of an optimizer, which the part for its groups and rows records
_RECORDED = ("defaults", "state", "param_groups")
APART = _BASE.union(_RECORDED)  # attributes whose objects are recorded by others

REMEDY_STATE = "a tensor in state[parameter]"
REMEDY_VALUE = "a tensor that is given to protect()"


class Attributes(Values):
    """The attributes of `modules` (name -> module), of all modules inside them, and of
    `optimizers`."""

    name = "attributes"

    def __init__(
        self,
        modules: dict[str, torch.nn.Module],
        optimizers: dict[str, torch.optim.Optimizer] | None = None,
    ) -> None:
        super().__init__()
        self._spaces: dict[str, Space] = {}
        self._seen: dict[str, Look] = {}
        # their values before the first change, for a repeat of an earlier step; None for a module
        # with something that cannot be recorded
        self._start: dict[str, dict[str, Any] | None] = {}
        self._reached: list[str] = []
        self._both: set[tuple[str, str]] = set()  # named: changed by steps and by data
        self._late: set[str] = set()  # made in a step, and not yet seen to change
        self._waiting: dict[str, Any] = {}  # what a record has of spaces that are found later
        # looks for those of these names
        self.find: Callable[[Collection[str]], dict[str, Space]] = lambda names: {}
        for name, root in modules.items():
            for path, module in root.named_modules():
                if not type(module).__module__.startswith("torch."):
                    space = Space(module.__dict__, _BASE, _limit(module))
                    self.add(f"{name}.{path}" if path else name, space)
        for name, optimizer in (optimizers or {}).items():
            if not type(optimizer).__module__.startswith("torch."):
                space = Space(optimizer.__dict__, _RECORDED, remedy=REMEDY_STATE)
                self.add(name, space)
        self._extra = {
            f"{name}.{path}" if path else name: module
            for name, root in modules.items()
            for path, module in root.named_modules()
            if type(module).get_extra_state is not torch.nn.Module.get_extra_state
        }
        # module -> how often it was found changed
        self._changed: dict[str, int] = {}
        # where one object has been exchanged for another: what was there is not written to, since
        # it may be a batch
        self._exchanged: set[tuple[str, str]] = set()
        self._swapped: set[tuple[str, str]] = set()  # inside of one

    def add(self, name: str, space: Space, late: bool = False) -> None:
        """Also record a space, in the place of the one that had this name in an earlier pass.
        `late`: a step has made it."""
        known = self._spaces.get(name)
        if known is not None and (late or known.attributes is space.attributes):
            return
        start = None if late else _values(space, space.own())
        if known is not None:
            space.moving, space.drawn = known.moving, known.drawn
        elif space.reached:
            self._reached.append(name)
        self._spaces[name], self._seen[name], self._start[name] = space, Look(space), start
        if late:
            self._changed[name] = 1
            if name.endswith(PARAMETER):  # which had no attributes
                self._start[name] = {OTHERS: []}
            else:
                self._late.add(name)
        if name in self._waiting:
            self._put(name, self._waiting.pop(name), {})

    def known(self) -> set[int]:
        """The ids of what the spaces are of; those of objects that are gone are forgotten."""
        for name in [name for name, space in self._spaces.items() if space.is_gone()]:
            for held in (self._spaces, self._seen, self._start):
                held.pop(name)
            self._reached.remove(name)
            self._changed.pop(name, None)
        return {id(space.attributes) for space in self._spaces.values()}

    def names_of(self, identity: int) -> set[Any]:
        """The names of what is recorded, or drawn again, of the object whose attributes, or which
        itself, has this id."""
        found = set[Any]()
        for space in self._spaces.values():
            of = getattr(space.attributes, "of", None)
            cells = getattr(of, "__closure__", None) or ()
            found |= {"" for cell in cells if id(cell) == identity}
            if identity in (id(space.attributes), id(of)) and not space.left:
                values = _values(space, space.recorded()) or {}
                found |= {*_names(values), *space.drawn}
        return found

    def containers(self) -> set[int]:
        """The ids of those that are recorded as values."""
        found = set[int]()
        for space in self._spaces.values():
            for _, value in () if space.left else space.own():
                if type(value) in CONTAINERS and is_plain(value, space.limit):
                    inner = value.values() if type(value) is dict else value
                    found |= {id(value), *(id(v) for v in inner if type(v) in CONTAINERS)}
        return found

    # -- data --------------------------------------------------------------------------------------

    def draw(self, iterator: Iterator[Any]) -> Any:
        """The next of some data. What its drawing changes, of what the script's variables reach, is
        the data's: whoever has a batch keeps that, and whoever draws it again changes it again."""
        if not self._reached:
            return next(iterator)
        for name in self._reached:
            self._look_at(name)
        try:
            return next(iterator)
        finally:
            for name in self._reached:
                space, before = self._spaces[name], self._seen[name]
                if not space.left and not before.holds(space.attributes):
                    self._seen[name] = now = Look(space)
                    start = self._start[name] or {}
                    for key in now.differing(before) - space.drawn.keys():
                        if is_object(space.attributes.get(key)):
                            continue  # made where it is first needed, such as an open file
                        known = key in start and key not in space.moving
                        space.drawn[key] = start[key] if known else UNKNOWN

    def pass_begins(self) -> None:
        for name in self._reached:
            if drawn := self._spaces[name].drawn:
                values = _values(self._spaces[name], self._spaces[name].own()) or {}
                drawn.update({key: values.get(key, UNKNOWN) for key in drawn})

    def drawn_of(self, identities: Collection[int]) -> bool:
        """Whether drawing data has changed one of these, given by the ids of their attributes."""
        spaces = [self._spaces[name] for name in self._reached]
        return any(s.drawn and id(s.attributes) in identities for s in spaces)

    def draw_again(self) -> None:
        """This process will draw the data of a pass again: from its beginning."""
        for name in self._reached:
            space = self._spaces[name]
            for key, value in space.drawn.items():
                if value != UNKNOWN:
                    space.attributes[key] = into(space.attributes.get(key), value)
            self._seen[name] = Look(space)

    # -- as a part ---------------------------------------------------------------------------------

    def present(self) -> bool:
        return bool(self._spaces or self._extra)

    def value(self) -> Any:
        return self.changed()

    def refuse(self, value: Any) -> None:
        for name, values in value.items():
            say_unrecordable(name, "get_extra_state()", values)

    def changed(self) -> dict[str, dict[str, Any]]:
        """module -> attribute -> value, of the modules that have changed. ~60 ns per attribute if
        nothing has."""
        rows = {f"{name}()": {"": module.get_extra_state()} for name, module in self._extra.items()}
        for name, space in self._spaces.items():
            self._look_at(name)
            if name in self._changed or space.drawn or space.left:
                values = None if space.left else _values(space, space.recorded())
                rows[name] = {OTHERS: None} if values is None else values
                if space.drawn:
                    rows[name][DRAWN] = space.drawn
        return rows | self._waiting

    def put(self, content: Content) -> None:
        """A module that had not changed by then is set back to its start."""
        rows: dict[str, dict[str, Any]] = plain.decode(content.data)
        written: dict[int, Any] = {}  # two attributes may have one object, and have had two
        for name, module in self._extra.items():
            if (values := rows.pop(f"{name}()", None)) is not None:
                module.set_extra_state(values[""])
        if unknown := rows.keys() - self._spaces.keys():
            for name, space in self.find(unknown).items():
                if name in unknown:
                    self.add(name, space)
        for name in list(self._spaces):
            self._put(name, rows.pop(name, None), written)
        self._waiting = rows

    def forget_waiting(self) -> None:
        """What a record had of spaces that this process has not made."""
        self._waiting = {}

    def _put(self, name: str, row: dict[str, Any] | None, written: dict[int, Any]) -> None:
        space, start = self._spaces[name], self._start[name]
        if row is not None:
            space.drawn = row.get(DRAWN, {}) | space.drawn
        moved = {*space.moving}  # before the interrupted step, if this process has lived
        self._look_at(name)
        values = row
        if row is None and name in self._changed and _values(space, space.recorded()) is not None:
            values = start
        if values is None or values[OTHERS] is None or space.left:
            return
        if isinstance(values[OTHERS], str):
            raise WouldDiverge(f"{name} {values[OTHERS]}")
        if space.reached:
            if self._lacks(name, values):
                return
            values = self._with_start(space, row or {}, start or {}, moved)
        known = {*values, *values[OTHERS], *values.get(LARGE, ())}
        for key, value in space.recorded():
            if key not in known and is_plain(value, space.limit):
                del space.attributes[key]
        for key in _names(values):
            present = space.attributes.get(key)
            same = (name, key) not in self._exchanged and self._seen[name].has(key, present)
            inside = (name, key) not in self._swapped
            fits = partial(_fits, written, present, same, inside)
            space.attributes[key] = into(present, values[key], fits)
        if row is not None:
            self._changed.setdefault(name, 0)
        else:
            self._changed.pop(name, None)
        self._seen[name] = Look(space)

    def _lacks(self, name: str, values: dict[str, Any]) -> bool:
        """Whether an object of the script holds another than was recorded, which a step has made:
        a flag is not put back without what it tells of."""
        space, present = self._spaces[name], dict(self._spaces[name].own())
        missing = [key for key in values[OTHERS] if not is_object(present.get(key))]
        made = [key for key in _names(values) if is_object(present.get(key))]
        if missing or made:
            log.warning("not protected: %s.%s %s", name, (missing or made)[0], MADE)
            space.left = True
        return space.left

    @staticmethod
    def _with_start(
        space: Space, row: dict[str, Any], start: dict[str, Any], moved: set[str]
    ) -> dict[str, Any]:
        """`row`, with what had not changed by then as it was in the beginning; but not a flag that
        has changed in this step for the first time: a signal may have set it. `moved`: the names of
        what had changed before."""
        space.moving |= {*_names(row)}
        apart = {*row.get(OTHERS, ()), *row.get(LARGE, ()), *space.drawn}
        news = {k for k in space.moving - moved - row.keys() if _is_flag(start.get(k))}
        kept = {k: start[k] for k in _names(start) if k in space.moving - news - apart}
        kept = {k: v for k, v in (kept | row).items() if k not in space.drawn}
        return {OTHERS: [], **kept, LARGE: [*row.get(LARGE, ()), *news]}

    def _look_at(self, name: str) -> None:
        space, before = self._spaces[name], self._seen[name]
        if space.left or before.holds(space.attributes):
            return
        self._seen[name] = now = Look(space)
        if now.equals(before):  # only something not compared was added or removed
            return
        if space.reached and any(places.is_live(value) for _, value in space.own()):
            space.left = True  # what it says of itself holds in its process
            return
        differing = now.differing(before)
        space.moving |= differing
        self._exchanged |= {(name, key) for key in now.exchanged(before)}
        self._swapped |= {(name, key) for key in now.swapped(before)}
        self._changed[name] = times = self._changed.get(name, 0) + 1
        self._say(name, times, now, before, differing & space.drawn.keys())

    def _say(self, name: str, times: int, now: Look, before: Look, both: set[str]) -> None:
        space = self._spaces[name]
        if times == 1 and space.remedy == REMEDY_VALUE:
            log.info("also protected: values in %s", name)
        if name in self._late:
            self._late.remove(name)
            log.warning("not protected: %s %s", name, MADE)
        said = dict.fromkeys([key for key in both if (name, key) not in self._both], BOTH)
        self._both |= {(name, key) for key in both}
        if times <= 2:
            said |= {key: VIEW for key in now.views() if key in now.exchanged(before)}
            said |= dict.fromkeys(now.by_id(), BY_ID)
        for key in now.outgrown(before):
            said[key] = OUTGROWN
        for key, why in said.items():
            log.warning("not protected: %s: its attribute %s %s", name, key, why)
        large = [key for key, value in space.recorded() if is_large(value)]
        # a single change is a cache that the first forward filled; metrics have their own limit
        if times == 2 and large and space.limit == LARGEST and not space.reached:
            log.warning(
                "%s: its attribute %s is too large to record at every step, so none of its"
                " attributes is recorded; after a repair they may have other values. Make what"
                " training changes %s",
                name,
                large[0],
                space.remedy,
            )


def _names(values: dict[str, Any]) -> list[str]:
    """In the order of the record: a loop over them may send each."""
    return [key for key in values if key not in _NO_NAMES]


def _is_flag(value: Any) -> bool:
    return value is None or type(value) is bool


def _fits(
    written: dict[int, Any], top: Any, same: bool, inside: bool, there: Any, value: Any
) -> bool:
    """See stored_attributes.into."""
    held = same if there is top else inside
    return held and plain.same(written.setdefault(id(there), value), value)


def _values(space: Space, rows: Own) -> dict[str, Any] | None:
    """A copy of the plain ones among `rows`, with the names of the OTHERS: of an object of the
    script objects alone, and LARGE has the other values; None if one is large and of another
    object. Of a metric whose state is too large, that text alone."""
    own, limit = dict(rows), space.limit
    if limit == METRIC:
        if (found := sum(map(size, own.values()))) > METRIC:
            text = f"has a state of {found:,} bytes; up to {METRIC:,} are recorded in each step"
            return {OTHERS: f"{text}: have it compute in parts, or by thresholds"}
    elif not space.reached and any(map(is_large, own.values())):
        return None
    plain_ones = (row for row in own.items() if is_plain(row[1], limit))
    copied = {k: (*v,) if isinstance(v, tuple) else v for k, v in plain_ones}
    copy: dict[str, Any] = plain.decode(plain.encode(copied))
    others = [key for key in own if key not in copied]
    if not space.reached:
        return {**copy, OTHERS: others}
    objects = [key for key in others if is_object(own[key])]
    return {**copy, OTHERS: objects, LARGE: [key for key in others if key not in objects]}


def _limit(module: torch.nn.Module) -> int:
    """Bytes of the tensors in one of its attributes."""
    kinds = ((kind.__module__, kind.__name__) for kind in type(module).__mro__)
    return METRIC if ("torchmetrics.metric", "Metric") in kinds else LARGEST

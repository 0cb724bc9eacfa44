"""Records modules' extra state, and plain attributes of modules, of optimizers and of what these
hold (discovery/held.py) that change in training: a counter, a running mean.

Such attributes are neither buffers nor optimizer state, so no state_dict has them. Attributes that
an author put into `self` are compared with their values at `protect`. Once something has changed,
all plain attributes of the object are recorded together: a flag without the cache that it describes
is worse than neither. torch's own classes keep no state this way.

A metric of torchmetrics is all state: tensors, and lists of them, of any size. One that outgrows
METRIC ends a job in which it would have to be restored.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any

import torch

from taskd.worker.state import plain
from taskd.worker.state.given import WouldDiverge
from taskd.worker.state.looks import (
    CONTAINERS,
    LARGEST,
    METRIC,
    PARAMETER,
    Look,
    Own,
    Space,
    is_large,
    is_plain,
    size,
)
from taskd.worker.state.part import Content, Values
from taskd.worker.state.small_state import say_unrecordable
from taskd.worker.state.stored_attributes import into

log = logging.getLogger("taskd.worker")

OTHERS = ""  # in a record: names of the attributes that are not in it

_BASE = frozenset(torch.nn.Module().__dict__)
# of an optimizer, which the part for its groups and rows records
_RECORDED = ("defaults", "state", "param_groups")
APART = _BASE.union(_RECORDED)  # attributes whose objects are recorded by others

MADE = (
    "was made in a step, and steps change it: a replaced rank would make another one. Make it"
    " before protect()"
)
VIEW = (
    "is a view of another one, and another view in the next step: after a repair it has memory of"
    " its own. Have it made where it is read"
)
BY_ID = (
    "has keys that are ids of objects, which have others in another process. Key it by name, or by"
    " the parameter's number"
)
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
        # spaces that have changed as data were drawn: their values as the pass began, if known
        self._drawn: dict[str, dict[str, Any] | None] = {}
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
        """Also record a space; one of the name that it had in an earlier pass is forgotten.
        `late`: a step has made it."""
        known = self._spaces.get(name)
        if known is not None and (late or known.attributes is space.attributes):
            return
        if known is not None:
            space.moving = known.moving
        elif space.reached:
            self._reached.append(name)
        self._spaces[name], self._seen[name] = space, Look(space)
        small = [row for row in space.own() if not (space.reached and is_large(row[1]))]
        self._start[name] = None if late else _values(space, small)
        if late:
            self._changed[name] = 1
            if name.endswith(PARAMETER):  # which had no attributes
                self._start[name] = {OTHERS: []}
            else:
                self._late.add(name)
        if name in self._waiting:
            self._put(name, self._waiting.pop(name), {})

    def known(self) -> set[int]:
        """The ids of what the spaces are of."""
        return {id(space.attributes) for space in self._spaces.values()}

    def names_of(self, identity: int) -> set[Any] | None:
        """The names of what is recorded of the object whose attributes, or which itself, has this
        id; None for one of the data, which are drawn again."""
        found = set[Any]()
        for name, space in self._spaces.items():
            if (
                id(space.attributes) == identity
                or id(getattr(space.attributes, "of", None)) == identity
            ):
                if name in self._drawn:
                    return None
                found |= (_values(space, space.recorded()) or {}).keys() - {OTHERS}
        return found

    def containers(self) -> set[int]:
        """The ids of those that are recorded as values."""
        found = set[int]()
        for space in self._spaces.values():
            for _, value in space.own():
                if type(value) in CONTAINERS and is_plain(value, space.limit):
                    inner = value.values() if type(value) is dict else value
                    found |= {id(value), *(id(v) for v in inner if type(v) in CONTAINERS)}
        return found

    def draw(self, iterator: Iterator[Any]) -> Any:
        """The next of some data, whose drawing may change what the script's variables reach."""
        if not self._reached:
            return next(iterator)
        watched = [name for name in self._reached if name not in self._drawn]
        for name in watched:
            if not self._seen[name].holds(self._spaces[name].attributes):
                self._notice(name, self._spaces[name])
        try:
            return next(iterator)
        finally:
            for name in watched:
                if not self._seen[name].holds(self._spaces[name].attributes):
                    moving = self._follow(name)
                    start = None if name in self._changed else self._start[name]
                    self._drawn[name] = start and {k: v for k, v in start.items() if k in moving}

    def pass_begins(self) -> None:
        for name in self._drawn:
            self._follow(name)
            self._drawn[name] = _values(self._spaces[name], self._spaces[name].recorded())

    def _follow(self, name: str) -> set[str]:
        """The names of what has ever changed in a space."""
        space, before = self._spaces[name], self._seen[name]
        now = self._seen[name] = Look(space)
        space.moving |= now.differing(before)
        return space.moving

    def draw_again(self) -> None:
        """This process will draw the data of a pass again: from its beginning."""
        for name, values in self._drawn.items():
            space = self._spaces[name]
            for key in (values or {}).keys() - {OTHERS}:
                value = (values or {})[key]
                space.attributes[key] = into(space.attributes.get(key), value)

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
            if name in self._drawn:
                rows[name] = (self._drawn[name] or {}) | {OTHERS: None}
                continue
            if not self._seen[name].holds(space.attributes):
                self._notice(name, space)
            if name in self._changed and (values := _values(space, space.recorded())) is not None:
                rows[name] = values
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
        for name in self._spaces:
            self._put(name, rows.pop(name, None), written)
        self._waiting = rows

    def _put(self, name: str, row: dict[str, Any] | None, written: dict[int, Any]) -> None:
        space, values = self._spaces[name], row
        if values is not None and values[OTHERS] is None:
            space.moving |= values.keys() - {OTHERS}
            self._drawn.setdefault(name, values)
        if name in self._drawn:
            return
        if not self._seen[name].holds(space.attributes):
            self._notice(name, space)
        start = self._start[name]
        if values is None and name in self._changed and _values(space, space.recorded()):
            values = start
        if values is None:
            return
        if isinstance(values[OTHERS], str):
            raise WouldDiverge(f"{name} {values[OTHERS]}")
        if space.reached and start is not None:
            space.moving |= (row or {}).keys() - {OTHERS}
            # what had not changed by then is as it was in the beginning
            values = {k: v for k, v in (start | values).items() if k in space.moving or k == OTHERS}
        known = {*values, *values[OTHERS]}
        for key, value in space.recorded():
            if key not in known and is_plain(value, space.limit):
                del space.attributes[key]
        for key in values.keys() - {OTHERS}:
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

    def _notice(self, name: str, space: Space) -> None:
        before, now = self._seen[name], Look(space)
        self._seen[name] = now
        if now.equals(before):  # only something not compared was added or removed
            return
        space.moving |= now.differing(before)
        self._exchanged |= {(name, key) for key in now.exchanged(before)}
        self._swapped |= {(name, key) for key in now.swapped(before)}
        self._changed[name] = times = self._changed.get(name, 0) + 1
        if times == 1 and space.remedy == REMEDY_VALUE:
            log.info("also protected: values in %s", name)
        if name in self._late:
            self._late.remove(name)
            log.warning("not protected: %s %s", name, MADE)
        if times <= 2:
            said = dict.fromkeys(now.views(), VIEW) | dict.fromkeys(now.by_id(), BY_ID)
            for key, why in said.items():
                log.warning("not protected: %s: its attribute %s %s", name, key, why)
        large = [key for key, value in space.recorded() if is_large(value)]
        # a single change is a cache that the first forward filled; metrics have their own limit
        if times == 2 and large and space.limit == LARGEST:
            log.warning(
                "%s: its attribute %s is too large to record at every step, so none of its"
                " attributes is recorded; after a repair they may have other values. Make what"
                " training changes %s",
                name,
                large[0],
                space.remedy,
            )


def _fits(
    written: dict[int, Any], top: Any, same: bool, inside: bool, there: Any, value: Any
) -> bool:
    """See stored_attributes.into. Two attributes may have one object, and have had two."""
    held = same if there is top else inside
    return held and plain.same(written.setdefault(id(there), value), value)


def _values(space: Space, rows: Own) -> dict[str, Any] | None:
    """A copy of the plain ones among `rows`, with the names of the OTHERS; None if one is too
    large. Of a metric whose state is too large, that text alone."""
    own, limit = dict(rows), space.limit
    if limit == METRIC:
        if (found := sum(map(size, own.values()))) > METRIC:
            text = f"has a state of {found:,} bytes; up to {METRIC:,} are recorded in each step"
            return {OTHERS: f"{text}: have it compute in parts, or by thresholds"}
    elif any(map(is_large, own.values())):
        return None
    plain_ones = (row for row in own.items() if is_plain(row[1], limit))
    copied = {k: (*v,) if isinstance(v, tuple) else v for k, v in plain_ones}
    copy: dict[str, Any] = plain.decode(plain.encode(copied))
    return {**copy, OTHERS: [key for key in own if key not in copied]}


def _limit(module: torch.nn.Module) -> int:
    """Bytes of the tensors in one of its attributes."""
    kinds = ((kind.__module__, kind.__name__) for kind in type(module).__mro__)
    return METRIC if ("torchmetrics.metric", "Metric") in kinds else LARGEST

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
import sys
from collections import deque
from collections.abc import Collection, MutableMapping
from typing import Any

import torch

from taskd.worker.state import plain
from taskd.worker.state.given import WouldDiverge
from taskd.worker.state.part import Content, Values
from taskd.worker.state.small_state import say_unrecordable
from taskd.worker.state.stored_attributes import into

log = logging.getLogger("taskd.worker")

# bytes of a tensor written to every record; a larger one belongs in a buffer
LARGEST = 1 << 16
ITEMS = 64  # of a container; a longer one is data or a history
ROW = 16  # of a list in a container
METRIC = 1 << 22  # bytes of a metric's state, which are copied at every step
OTHERS = ""  # in a record: names of the attributes that are not in it

_SCALARS = (bool, int, float, complex, str, bytes, type(None))
_CONTAINERS = (list, tuple, dict, set, deque)
_BASE = frozenset(torch.nn.Module().__dict__)
# of an optimizer, which the part for its groups and rows records
_RECORDED = ("defaults", "state", "param_groups")
APART = _BASE.union(_RECORDED)  # attributes whose objects are recorded by others

REMEDY = "a buffer (register_buffer)"
REMEDY_STATE = "a tensor in state[parameter]"
REMEDY_VALUE = "a tensor that is given to protect()"
Own = list[tuple[str, Any]]


class Space:
    """The attributes of an object, or the variables of a function, by name. `apart`: those that its
    author has not put there; `limit`: bytes of the tensors in one of them."""

    def __init__(
        self,
        attributes: MutableMapping[str, Any],
        apart: Collection[str] = (),
        limit: int = LARGEST,
        remedy: str = REMEDY,
    ) -> None:
        self.attributes, self.limit, self.remedy = attributes, limit, remedy
        self._apart = apart

    def own(self) -> Own:
        return [row for row in list(self.attributes.items()) if row[0] not in self._apart]


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
        self._seen: dict[str, _Look] = {}
        # their values before the first change, for a repeat of an earlier step; None for a module
        # with something that cannot be recorded
        self._start: dict[str, dict[str, Any] | None] = {}
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

    def add(self, name: str, space: Space) -> None:
        self._spaces[name], self._seen[name] = space, _Look(space)
        self._start[name] = _values(space)

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
            if not self._seen[name].holds(space.attributes):
                self._notice(name, space)
            if name in self._changed and (values := _values(space)) is not None:
                rows[name] = values
        return rows

    def put(self, content: Content) -> None:
        """A module that had not changed by then is set back to its start."""
        rows: dict[str, dict[str, Any]] = plain.decode(content.data)
        written: dict[int, Any] = {}  # two attributes may have one object, and have had two
        for name, module in self._extra.items():
            if f"{name}()" in rows:
                module.set_extra_state(rows[f"{name}()"][""])
        for name, space in self._spaces.items():
            changed = name in self._changed or not self._seen[name].holds(space.attributes)
            if name in rows:
                values: dict[str, Any] | None = rows[name]
            elif changed and _values(space) is not None:
                values = self._start[name]
            else:
                continue
            if values is None:
                continue
            if isinstance(values[OTHERS], str):
                raise WouldDiverge(f"{name} {values[OTHERS]}")
            known = {*values, *values[OTHERS]}
            for key, value in space.own():
                if key not in known and is_plain(value, space.limit):
                    del space.attributes[key]
            for key in values.keys() - {OTHERS}:
                present = space.attributes.get(key)
                same = (
                    (name, key) not in self._exchanged
                    and self._seen[name].has(key, present)
                    and plain.same(written.setdefault(id(present), values[key]), values[key])
                )
                space.attributes[key] = into(present, values[key], same)
            if name in rows:
                self._changed.setdefault(name, 0)
            else:
                self._changed.pop(name, None)
            self._seen[name] = _Look(space)

    def _notice(self, name: str, space: Space) -> None:
        before, self._seen[name] = self._seen[name], _Look(space)
        if self._seen[name].equals(before):  # only something not compared was added or removed
            return
        self._exchanged |= {(name, key) for key in self._seen[name].exchanged(before)}
        self._changed[name] = times = self._changed.get(name, 0) + 1
        if times == 1 and space.remedy == REMEDY_VALUE:
            log.info("also protected: values in %s", name)
        large = [key for key, value in space.own() if _is_large(value)]
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


class _Look:
    """The plain ones of a space at one moment. Holds the objects, so that no other can get their
    identity."""

    def __init__(self, space: Space) -> None:
        self._count = len(space.attributes)
        self._rows = [
            (key, value, _mark(value))
            for key, value in space.own()
            if is_plain(value, space.limit) or _is_large(value)
        ]

    def holds(self, attributes: MutableMapping[str, Any]) -> bool:
        """Whether nothing has changed since."""
        for key, value, mark in self._rows:
            now = attributes.get(key, self)
            if now is not value and (mark is not None or not _is_equal(now, value)):
                return False
            if mark is not None and mark != _mark(now):
                return False
        return len(attributes) == self._count

    def has(self, key: str, value: Any) -> bool:
        """Whether it was this very object."""
        return any(row[1] is value for row in self._rows if row[0] == key)

    def exchanged(self, before: _Look) -> set[str]:
        """The names of what was another object before."""
        known = {key: value for key, value, _ in before._rows}
        return {key for key, value, _ in self._rows if known.get(key, value) is not value}

    def equals(self, other: _Look) -> bool:
        return len(self._rows) == len(other._rows) and all(
            a[0] == b[0]
            and type(a[1]) is type(b[1])
            and a[2] == b[2]
            and (a[1] is b[1] or (a[2] is None and _is_equal(a[1], b[1])))
            for a, b in zip(self._rows, other._rows, strict=True)
        )


class _Same:
    """A tensor at one moment, in a mark of a container."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor, self._version = tensor, _version(tensor)

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, _Same) and self._tensor is other._tensor
        return same and self._version == other._version  # type: ignore[attr-defined]

    __hash__ = None  # type: ignore[assignment]


def _version(tensor: torch.Tensor) -> Any:
    """Tensors that inference made count no versions: their content, if they are small."""
    if not tensor.is_inference():
        return tensor._version
    return b"" if _is_large(tensor) else plain.encode(tensor)


def _is_equal(a: Any, b: Any) -> bool:
    """Of values without a mark; a large array is equal to itself alone."""
    return type(a) is type(b) and not _is_array(a) and bool(a == b)


def _mark(value: Any) -> Any:
    """A mark that shows in-place changes of an object; None if it has none."""
    kind = type(value)
    if kind is torch.Tensor:
        return _version(value)
    if kind is dict:
        return {key: _inner(v) for key, v in value.items()}
    rows = isinstance(value, tuple) and any(type(v) not in _SCALARS for v in value)
    if kind in (list, deque) or rows:
        return [_inner(v) for v in value]
    if kind is set:
        return set(value)
    return value.tobytes() if _is_array(value) and not _is_large(value) else None


def _inner(value: Any) -> Any:
    if type(value) is torch.Tensor:
        return _Same(value)
    return list(value) if type(value) is list else value


def _values(space: Space) -> dict[str, Any] | None:
    """A copy of the plain ones, with the names of the OTHERS; None if one is too large. Of a metric
    whose state is too large, that text alone."""
    own, limit = dict(space.own()), space.limit
    if limit == METRIC:
        if (size := sum(map(_size, own.values()))) > METRIC:
            text = f"has a state of {size:,} bytes; up to {METRIC:,} are recorded in each step"
            return {OTHERS: f"{text}: have it compute in parts, or by thresholds"}
    elif any(map(_is_large, own.values())):
        return None
    plain_ones = (row for row in own.items() if is_plain(row[1], limit))
    found = {k: (*v,) if isinstance(v, tuple) else v for k, v in plain_ones}
    copy: dict[str, Any] = plain.decode(plain.encode(found))
    return {**copy, OTHERS: [key for key in own if key not in found]}


def _limit(module: torch.nn.Module) -> int:
    """Bytes of the tensors in one of its attributes."""
    kinds = ((kind.__module__, kind.__name__) for kind in type(module).__mro__)
    return METRIC if ("torchmetrics.metric", "Metric") in kinds else LARGEST


def _size(value: Any) -> int:
    """Bytes of the tensors in it."""
    inner = value.values() if type(value) is dict else value if type(value) in _CONTAINERS else ()
    tensors = (v for v in (value, *inner) if type(v) is torch.Tensor)
    return sum(t.numel() * t.element_size() for t in tensors)


def is_plain(value: Any, limit: int = LARGEST) -> bool:
    """`limit`: bytes of its tensors."""
    kind = type(value)
    if kind in _SCALARS:
        return True
    if kind is torch.Tensor:
        return _is_tensor(value) and _size(value) <= limit
    if kind in _CONTAINERS or (issubclass(kind, tuple) and hasattr(kind, "_make")):
        atoms = value if kind is set else value.keys() if kind is dict else ()
        inner = value.values() if kind is dict else () if kind is set else value
        few = len(value) <= ITEMS or limit > LARGEST
        return (
            few
            and all(type(v) in _SCALARS for v in atoms)
            and all(type(v) in _SCALARS or _is_tensor(v) or _is_row(v) for v in inner)
            and _size(value) <= limit
        )
    if _is_array(value):
        return not value.dtype.hasobject and not _is_large(value)
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.generic) and value.dtype.kind in "biufc"


def _is_row(value: Any) -> bool:
    """A short list or tuple inside a container."""
    few = type(value) in (list, tuple) and len(value) <= ROW
    return few and all(type(v) in _SCALARS for v in value)


def _is_tensor(value: Any) -> bool:
    kind = type(value)
    return kind is torch.Tensor and not value.requires_grad and value.layout is torch.strided


def _is_large(value: Any) -> bool:
    if type(value) is torch.Tensor:
        return not value.requires_grad and value.numel() * value.element_size() > LARGEST
    return _is_array(value) and value.nbytes > LARGEST


def _is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and type(value) is numpy.ndarray

"""Records modules' extra state, and plain attributes of modules and optimizers that change in
training (a counter, a running mean).

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
from collections.abc import Iterator
from itertools import islice
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
METRIC = 1 << 22  # bytes of a metric's state, which are copied at every step
OTHERS = ""  # in a record: names of the attributes that are not in it

_SCALARS = (bool, int, float, complex, str, bytes, type(None))
_CONTAINERS = (list, tuple, dict, set, deque)
_BASE = tuple(torch.nn.Module().__dict__)
# of an optimizer, which the part for its groups and rows records
_RECORDED = ("defaults", "state", "param_groups")

REMEDY = "a buffer (register_buffer)"
REMEDY_STATE = "a tensor in state[parameter]"
Holder = torch.nn.Module | torch.optim.Optimizer


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
        self._modules: dict[str, Holder] = {
            f"{name}.{path}" if path else name: module
            for name, root in modules.items()
            for path, module in root.named_modules()
            if not type(module).__module__.startswith("torch.")
        }
        for name, optimizer in (optimizers or {}).items():
            if not type(optimizer).__module__.startswith("torch."):
                self._modules[name] = optimizer
        self._seen = {name: _Look(module) for name, module in self._modules.items()}
        # their values before the first change, for a repeat of an earlier step; None for a module
        # with something that cannot be recorded
        self._start = {name: _values(module) for name, module in self._modules.items()}
        self._extra = {
            f"{name}.{path}" if path else name: module
            for name, root in modules.items()
            for path, module in root.named_modules()
            if type(module).get_extra_state is not torch.nn.Module.get_extra_state
        }
        # module -> how often it was found changed
        self._changed: dict[str, int] = {}

    def present(self) -> bool:
        return bool(self._modules or self._extra)

    def value(self) -> Any:
        return self.changed()

    def refuse(self, value: Any) -> None:
        for name, values in value.items():
            say_unrecordable(name, "get_extra_state()", values)

    def changed(self) -> dict[str, dict[str, Any]]:
        """module -> attribute -> value, of the modules that have changed. ~60 ns per attribute if
        nothing has."""
        rows = {f"{name}()": {"": module.get_extra_state()} for name, module in self._extra.items()}
        for name, module in self._modules.items():
            if not self._seen[name].holds(module):
                self._notice(name, module)
            if name in self._changed and (values := _values(module)) is not None:
                rows[name] = values
        return rows

    def put(self, content: Content) -> None:
        """A module that had not changed by then is set back to its start."""
        rows: dict[str, dict[str, Any]] = plain.decode(content.data)
        for name, module in self._extra.items():
            if f"{name}()" in rows:
                module.set_extra_state(rows[f"{name}()"][""])
        for name, module in self._modules.items():
            if name in rows:
                values: dict[str, Any] | None = rows[name]
            elif (name in self._changed or not self._seen[name].holds(module)) and _values(
                module
            ) is not None:
                values = self._start[name]
            else:
                continue
            if values is None:
                continue
            if isinstance(values[OTHERS], str):
                raise WouldDiverge(f"{name} {values[OTHERS]}")
            known = {*values, *values[OTHERS]}
            limit = _limit(module)
            for key in [k for k, v in _own(module) if k not in known and _is_plain(v, limit)]:
                del module.__dict__[key]
            for key in values.keys() - {OTHERS}:
                module.__dict__[key] = into(module.__dict__.get(key), values[key])
            if name in rows:
                self._changed.setdefault(name, 0)
            else:
                self._changed.pop(name, None)
            self._seen[name] = _Look(module)

    def _notice(self, name: str, module: Holder) -> None:
        before, self._seen[name] = self._seen[name], _Look(module)
        if self._seen[name].equals(before):  # only something not compared was added or removed
            return
        self._changed[name] = times = self._changed.get(name, 0) + 1
        large = [key for key, value in _own(module) if _is_large(value)]
        # a single change is a cache that the first forward filled; metrics have their own limit
        if times == 2 and large and _limit(module) == LARGEST:
            log.warning(
                "%s: its attribute %s is too large to record at every step, so none of its"
                " attributes is recorded; after a repair they may have other values. Make what"
                " training changes %s",
                name,
                large[0],
                REMEDY if isinstance(module, torch.nn.Module) else REMEDY_STATE,
            )


class _Look:
    """A module's plain attributes at one moment. Holds the objects, so that no other can get their
    identity."""

    def __init__(self, module: Holder) -> None:
        self._count, limit = len(module.__dict__), _limit(module)
        self._rows = [
            (key, value, _mark(value))
            for key, value in _own(module)
            if _is_plain(value, limit) or _is_large(value)
        ]

    def holds(self, module: Holder) -> bool:
        """Whether nothing has changed since."""
        attributes = module.__dict__
        for key, value, mark in self._rows:
            now = attributes.get(key, self)
            if now is not value and (
                mark is not None or type(now) is not type(value) or now != value
            ):
                return False
            if mark is not None and mark != _mark(now):
                return False
        return len(attributes) == self._count

    def equals(self, other: _Look) -> bool:
        return len(self._rows) == len(other._rows) and all(
            a[0] == b[0]
            and type(a[1]) is type(b[1])
            and a[2] == b[2]
            and (a[1] is b[1] or (a[2] is None and a[1] == b[1]))
            for a, b in zip(self._rows, other._rows, strict=True)
        )


class _Same:
    """A tensor at one moment, in a mark of a container."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor, self._version = tensor, tensor._version

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, _Same) and self._tensor is other._tensor
        return same and self._version == other._version  # type: ignore[attr-defined]

    __hash__ = None  # type: ignore[assignment]


def _mark(value: Any) -> Any:
    """A mark that shows in-place changes of an object; None if it has none."""
    kind = type(value)
    if kind is torch.Tensor:
        return value._version
    if kind is dict:
        return {key: _Same(v) if type(v) is torch.Tensor else v for key, v in value.items()}
    if kind in (list, deque) or (kind is tuple and any(type(v) is torch.Tensor for v in value)):
        return [_Same(v) if type(v) is torch.Tensor else v for v in value]
    if kind is set:
        return set(value)
    return value.tobytes() if _is_array(value) and not _is_large(value) else None


def _own(module: Holder) -> Iterator[tuple[str, Any]]:
    """The attributes that the module's author has added."""
    attributes = module.__dict__
    if isinstance(module, torch.optim.Optimizer):
        yield from ((key, value) for key, value in attributes.items() if key not in _RECORDED)
    elif tuple(islice(attributes, len(_BASE))) == _BASE:
        yield from islice(list(attributes.items()), len(_BASE), None)
    else:
        yield from ((key, value) for key, value in list(attributes.items()) if key not in _BASE)


def _values(module: Holder) -> dict[str, Any] | None:
    """A copy of the module's plain attributes, with the names of the OTHERS; None if one is too
    large. Of a metric whose state is too large, that text alone."""
    own, limit = dict(_own(module)), _limit(module)
    if limit == METRIC:
        if (size := sum(map(_size, own.values()))) > METRIC:
            text = f"has a state of {size:,} bytes; up to {METRIC:,} are recorded in each step"
            return {OTHERS: f"{text}: have it compute in parts, or by thresholds"}
    elif any(map(_is_large, own.values())):
        return None
    found = {key: value for key, value in own.items() if _is_plain(value, limit)}
    copy: dict[str, Any] = plain.decode(plain.encode(found))
    return {**copy, OTHERS: [key for key in own if key not in found]}


def _limit(module: Holder) -> int:
    """Bytes of the tensors in one of its attributes."""
    kinds = ((kind.__module__, kind.__name__) for kind in type(module).__mro__)
    return METRIC if ("torchmetrics.metric", "Metric") in kinds else LARGEST


def _size(value: Any) -> int:
    """Bytes of the tensors in it."""
    inner = value.values() if type(value) is dict else value if type(value) in _CONTAINERS else ()
    tensors = (v for v in (value, *inner) if type(v) is torch.Tensor)
    return sum(t.numel() * t.element_size() for t in tensors)


def _is_plain(value: Any, limit: int = LARGEST) -> bool:
    """`limit`: bytes of its tensors."""
    kind = type(value)
    if kind in _SCALARS:
        return True
    if kind is torch.Tensor:
        return _is_tensor(value) and _size(value) <= limit
    if kind in _CONTAINERS:
        atoms = value if kind is set else value.keys() if kind is dict else ()
        inner = value.values() if kind is dict else () if kind is set else value
        few = len(value) <= ITEMS or limit > LARGEST
        return (
            few
            and all(type(v) in _SCALARS for v in atoms)
            and all(type(v) in _SCALARS or _is_tensor(v) for v in inner)
            and _size(value) <= limit
        )
    return _is_array(value) and not value.dtype.hasobject and not _is_large(value)


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

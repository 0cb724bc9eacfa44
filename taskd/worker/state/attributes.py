"""Records modules' extra state, and plain attributes that change in training (a counter, a running
mean).

Such attributes are not buffers, so no state_dict has them. Attributes that a module's author put
into `self` are compared with their values at `protect`. Once something has changed, all plain
attributes of the module are recorded together: a flag without the cache that it describes is worse
than neither. torch's own modules keep no state this way.
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

log = logging.getLogger("taskd.worker")

# bytes of a tensor written to every record; a larger one belongs in a buffer
LARGEST = 1 << 16
ITEMS = 64  # of a container; a longer one is data or a history

_SCALARS = (bool, int, float, complex, str, bytes, type(None))
_CONTAINERS = (list, tuple, dict, set, deque)
_BASE = tuple(torch.nn.Module().__dict__)


class Attributes:
    """The attributes of `modules` (name -> module) and of all modules inside them."""

    def __init__(self, modules: dict[str, torch.nn.Module]) -> None:
        self._modules = {
            f"{name}.{path}" if path else name: module
            for name, root in modules.items()
            for path, module in root.named_modules()
            if not type(module).__module__.startswith("torch.")
        }
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

    def snapshot(self) -> dict[str, dict[str, Any]]:
        """module -> attribute -> value, of the modules that have changed. ~60 ns per attribute if
        nothing has."""
        if not self._modules and not self._extra:
            return {}
        rows = {f"{name}()": {"": module.get_extra_state()} for name, module in self._extra.items()}
        for name, module in self._modules.items():
            if not self._seen[name].holds(module):
                self._notice(name, module)
            if name in self._changed and (values := _values(module)) is not None:
                rows[name] = values
        return rows

    def put(self, rows: dict[str, dict[str, Any]]) -> None:
        """Restore what `take` returned, perhaps in another process. A module that had not changed
        by then is set back to its start."""
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
            for key in [k for k, v in _own(module) if k not in values and _is_plain(v)]:
                del module.__dict__[key]
            for key, value in values.items():
                module.__dict__[key] = _into(module.__dict__.get(key), value)
            if name in rows:
                self._changed.setdefault(name, 0)
            else:
                self._changed.pop(name, None)
            self._seen[name] = _Look(module)

    def _notice(self, name: str, module: torch.nn.Module) -> None:
        before, self._seen[name] = self._seen[name], _Look(module)
        if self._seen[name].equals(before):  # only something not compared was added or removed
            return
        self._changed[name] = times = self._changed.get(name, 0) + 1
        large = [key for key, value in _own(module) if _is_large(value)]
        if times == 2 and large:  # a single change is a cache that the first forward filled
            log.warning(
                "%s: its attribute %s is too large to record at every step, so none of its"
                " attributes is recorded; after a repair they may have other values. Make what"
                " training changes a buffer (register_buffer)",
                name,
                large[0],
            )


class _Look:
    """A module's plain attributes at one moment. Holds the objects, so that no other can get their
    identity."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._count = len(module.__dict__)
        self._rows = [
            (key, value, _mark(value))
            for key, value in _own(module)
            if _is_plain(value) or _is_large(value)
        ]

    def holds(self, module: torch.nn.Module) -> bool:
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


def _mark(value: Any) -> Any:
    """A mark that shows in-place changes of an object; None if it has none."""
    kind = type(value)
    if kind is torch.Tensor:
        return value._version
    if kind in _CONTAINERS and kind is not tuple:
        return kind(value)
    return value.tobytes() if _is_array(value) and not _is_large(value) else None


def _own(module: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """The attributes that the module's author has added."""
    attributes = module.__dict__
    if tuple(islice(attributes, len(_BASE))) == _BASE:
        yield from islice(list(attributes.items()), len(_BASE), None)
    else:
        yield from ((key, value) for key, value in list(attributes.items()) if key not in _BASE)


def _values(module: torch.nn.Module) -> dict[str, Any] | None:
    """A copy of the module's plain attributes; None if one is too large."""
    values = {}
    for key, value in _own(module):
        if _is_large(value):
            return None
        if _is_plain(value):
            values[key] = plain.decode(plain.encode(value))
    return values


def _is_plain(value: Any) -> bool:
    kind = type(value)
    if kind in _SCALARS:
        return True
    if kind is torch.Tensor:
        return not value.requires_grad and value.layout is torch.strided and not _is_large(value)
    if kind in _CONTAINERS:
        inner = [*value.keys(), *value.values()] if kind is dict else value
        return len(value) <= ITEMS and all(type(v) in _SCALARS for v in inner)
    return _is_array(value) and not value.dtype.hasobject and not _is_large(value)


def _is_large(value: Any) -> bool:
    if type(value) is torch.Tensor:
        return not value.requires_grad and value.numel() * value.element_size() > LARGEST
    return _is_array(value) and value.nbytes > LARGEST


def _is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and type(value) is numpy.ndarray


def _into(present: Any, value: Any) -> Any:
    """Put `value` in the place of `present`, into the same object if possible, since others may
    refer to it."""
    if isinstance(value, torch.Tensor):
        if (
            type(present) is torch.Tensor
            and present.shape == value.shape
            and not present.requires_grad
        ):
            with torch.no_grad():
                return present.copy_(value)
        return value.clone()
    if isinstance(value, (list, deque)) and type(present) is type(value):
        present.clear()
        present.extend(value)
        return present
    if isinstance(value, (dict, set)) and type(present) is type(value):
        present.clear()
        present.update(value)
        return present
    return value

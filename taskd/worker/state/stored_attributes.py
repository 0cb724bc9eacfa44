"""Attributes as they are stored in objects, without running any of their code."""

from __future__ import annotations

import copy
import types
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from taskd.worker.state import plain

MISSING: Any = object()
MAPPINGS = (dict, OrderedDict, defaultdict)
_slots: dict[type, dict[str, types.MemberDescriptorType]] = {}


def stored(holder: Any) -> dict[str, Any]:
    """The `__dict__` of an object, an empty one if it has none."""
    try:
        found = object.__getattribute__(holder, "__dict__")
    except AttributeError:
        return {}
    return found if type(found) is dict else {}


def slots(kind: type) -> dict[str, types.MemberDescriptorType]:
    if kind not in _slots:
        _slots[kind] = {
            name: member
            for base in reversed(kind.__mro__)
            for name, member in vars(base).items()
            if type(member) is types.MemberDescriptorType and not name.startswith("__")
        }
    return _slots[kind]


def attributes(holder: Any) -> Iterator[tuple[str, Any]]:
    """All that are stored in an object."""
    yield from (row for row in list(stored(holder).items()) if isinstance(row[0], str))
    for name, member in slots(type(holder)).items():
        try:
            yield name, member.__get__(holder)
        except AttributeError:  # not assigned yet
            continue


def value_of_attribute(holder: Any, name: str) -> Any:
    """MISSING if it is not stored in the object."""
    found = stored(holder).get(name, MISSING)
    if found is MISSING and (member := slots(type(holder)).get(name)) is not None:
        try:
            return member.__get__(holder)
        except AttributeError:
            return MISSING
    return found


def put_attribute(holder: Any, name: str, value: Any) -> None:
    """The counterpart of `value_of_attribute`."""
    if (member := slots(type(holder)).get(name)) is not None:
        member.__set__(holder, value)
    else:
        object.__getattribute__(holder, "__dict__")[name] = value


def method_of(holder: Any, name: str) -> tuple[types.FunctionType | None, bool]:
    """The function of a method, or of a property, and whether it is that of a property."""
    if value_of_attribute(holder, name) is not MISSING:
        return None, False
    for kind in type(holder).__mro__:
        if name in vars(kind):
            found = vars(kind)[name]
            asked = type(found) is property
            found = found.fget if asked else found
            return (found if type(found) is types.FunctionType else None), asked
    return None, False


def like(present: Any, recorded: Any) -> Any:
    """A new object with the recorded value, of the kind and on the device of `present`."""
    if isinstance(recorded, torch.Tensor):
        made = recorded.clone()
        if isinstance(present, torch.Tensor):
            made = made.to(present.device)
            if present.is_leaf and present.requires_grad:
                made.requires_grad_()
        return made
    if isinstance(recorded, (dict, list, deque, set)) or type(present) is bytearray:
        outer = copy.copy(present if _takes(present, recorded) else recorded)
        if _takes(outer, recorded):
            return into(outer, recorded, lambda there, _: there is outer)
        return outer
    if isinstance(recorded, tuple):
        return into(present, recorded, lambda there, _: False)
    return recorded.copy() if _is_array(recorded) else recorded


def into(
    present: Any, recorded: Any, fits: Callable[[Any, Any], bool] = lambda there, value: True
) -> Any:
    """Put the recorded value into `present` if it is of that kind, since others may refer to it;
    returns the object to use from now on. `fits`: whether the value may be written into a tensor,
    array or container that is there; where it may be another object than was recorded, such as the
    batch, one is made anew."""
    kind = type(present)
    if isinstance(recorded, torch.Tensor):
        writable = kind is torch.Tensor and not (present.requires_grad or present.is_inference())
        alike = writable and (present.shape, present.dtype) == (recorded.shape, recorded.dtype)
        if not alike or not plain.is_dense(present) or not fits(present, recorded):
            return like(present, recorded)
        with torch.no_grad():
            return present.copy_(recorded)
    if _is_array(recorded):
        # assigned, a value of another type would be rounded to the present one's
        alike = kind is type(recorded) and present.flags.writeable
        alike = alike and (present.shape, present.dtype) == (recorded.shape, recorded.dtype)
        if not alike or not fits(present, recorded):
            return like(present, recorded)
        present[...] = recorded
        return present
    if isinstance(recorded, tuple):
        matching = isinstance(present, tuple) and len(present) == len(recorded)
        rows = present if matching else (None,) * len(recorded)
        made = [into(p, r, fits) for p, r in zip(rows, recorded, strict=True)]
        return kind._make(made) if matching and hasattr(kind, "_make") else tuple(made)
    if not _takes(present, recorded) or not fits(present, recorded):
        return like(present, recorded)
    if isinstance(recorded, dict):
        other = _tensor(present.values())
        found = {
            k: into(present[k], v, fits) if k in present else like(other, v)
            for k, v in recorded.items()
        }
        present.clear()
        present.update(found)
    elif isinstance(recorded, set):
        present.clear()
        present.update(recorded)
    elif isinstance(recorded, bytes):
        present[:] = recorded
    else:
        other, old = _tensor(present), list(present)
        items = [into(p, r, fits) for p, r in zip(old, recorded, strict=False)]
        items += [like(other, value) for value in list(recorded)[len(old) :]]
        present.clear()
        present.extend(items)
    return present


def _takes(present: Any, recorded: Any) -> bool:
    """Whether a container can hold what is recorded."""
    kind = type(present)
    return (
        (isinstance(recorded, dict) and kind in MAPPINGS)
        or (isinstance(recorded, list) and kind in (list, deque))
        or (isinstance(recorded, deque) and kind is deque)
        or (isinstance(recorded, set) and kind is set)
        or (isinstance(recorded, bytes) and kind is bytearray)
    )


def _tensor(values: Iterable[Any]) -> torch.Tensor | None:
    """One of them, on whose device the others are."""
    return next((v for v in values if isinstance(v, torch.Tensor)), None)


def _is_array(value: Any) -> bool:
    return type(value).__module__ == "numpy" and getattr(value, "ndim", 0) > 0


class Exchanges:
    """Containers in which a tensor or container has been exchanged for another, by name: what is
    there may be another one than was recorded, such as the batch, and is not written to."""

    def __init__(self) -> None:
        self._held: dict[str, list[Callable[[], Any]]] = {}
        self._found: set[str] = set()

    def look(self, name: str, now: Sequence[Any]) -> bool:
        """Whether one has been; `now`: what it holds now."""
        held = self._held.get(name, ())
        if any(there() is not value for there, value in zip(held, now, strict=False)):
            self._found.add(name)
        if now:
            self._held[name] = [_reference(value) for value in now]
        return name in self._found


def _reference(value: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(value)
    except TypeError:  # a list or a dict
        return lambda: value

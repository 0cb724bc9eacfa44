"""Attributes as they are stored in objects, without running any of their code."""

from __future__ import annotations

import types
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

MISSING: Any = object()
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


def into(present: Any, value: Any, same: bool = True) -> Any:
    """Put `value` in the place of `present`, into the same object if possible, since others may
    refer to it; not `same`: into a new one."""
    value = _moved(present, value)
    if not same and not isinstance(present, tuple):
        present = None
    if isinstance(value, torch.Tensor):
        if (
            type(present) is torch.Tensor
            and present.shape == value.shape
            and not present.requires_grad
            and not present.is_inference()
        ):
            with torch.no_grad():
                return present.copy_(value)
        return value.clone()
    if type(value).__module__ == "numpy" and value.ndim:
        alike = type(present) is type(value) and present.flags.writeable
        if alike and (value.shape, value.dtype) == (present.shape, present.dtype):
            present[...] = value
            return present
        return value.copy()
    if isinstance(value, tuple) and hasattr(type(present), "_make"):  # a named one
        return type(present)._make(value)
    if isinstance(value, (list, deque)) and type(present) is type(value):
        present.clear()
        present.extend(value)
        return present
    if isinstance(value, (dict, set)) and type(present) is type(value):
        present.clear()
        present.update(value)
        return present
    return value


class Exchanges:
    """Containers in which a tensor or container has been exchanged for another, by name: what is
    there may be another one than was recorded, such as the batch, and is not written to."""

    def __init__(self) -> None:
        self._held: dict[str, list[Callable[[], Any]]] = {}
        self._found: set[str] = set()

    def look(self, name: str, now: Sequence[Any]) -> bool:
        """Whether one has been; `now`: what it holds now."""
        held = self._held.get(name, ())
        if len({id(value) for value in now}) < len(now) or any(
            there() is not value for there, value in zip(held, now, strict=False)
        ):
            self._found.add(name)
        if now:
            self._held[name] = [_reference(value) for value in now]
        return name in self._found


def _reference(value: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(value)
    except TypeError:  # a list or a dict
        return lambda: value


def _moved(present: Any, value: Any) -> Any:
    """`value` with its tensors on the device of those in `present`."""
    held = (*present.values(),) if type(present) is dict else present
    held = held if isinstance(held, (list, tuple, deque)) else (held,)
    device = next((v.device for v in held if isinstance(v, torch.Tensor)), None)
    if device is None or device.type == "cpu":
        return value

    def move(v: Any) -> Any:
        return v.to(device) if isinstance(v, torch.Tensor) else v

    if type(value) is dict:
        return {key: move(v) for key, v in value.items()}
    if type(value) in (list, tuple, deque):
        return type(value)(map(move, value))
    return move(value)

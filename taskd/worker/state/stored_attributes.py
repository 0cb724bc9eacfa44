"""Attributes as they are stored in objects, without running any of their code."""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Iterator
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


def into(present: Any, value: Any) -> Any:
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
    if type(value).__module__ == "numpy" and value.ndim:
        alike = type(present) is type(value) and present.flags.writeable
        if alike and (value.shape, value.dtype) == (present.shape, present.dtype):
            present[...] = value
            return present
        return value.copy()
    if isinstance(value, (list, deque)) and type(present) is type(value):
        present.clear()
        present.extend(value)
        return present
    if isinstance(value, (dict, set)) and type(present) is type(value):
        present.clear()
        present.update(value)
        return present
    return value

"""Attributes as they are stored in objects, without running any of their code."""

from __future__ import annotations

import types
from typing import Any

MISSING: Any = object()


def value_of_attribute(holder: Any, name: str) -> Any:
    """An attribute as it is stored in the object, without running any of its code."""
    try:
        found = object.__getattribute__(holder, "__dict__").get(name, MISSING)
    except AttributeError:
        found = MISSING
    if found is MISSING:
        for kind in type(holder).__mro__:
            member = vars(kind).get(name)
            if type(member) is types.MemberDescriptorType:
                try:
                    return member.__get__(holder)
                except AttributeError:
                    return MISSING
    return found


def put_attribute(holder: Any, name: str, value: Any) -> None:
    """The counterpart of `value_of_attribute`."""
    for kind in type(holder).__mro__:
        member = vars(kind).get(name)
        if type(member) is types.MemberDescriptorType:
            member.__set__(holder, value)
            return
    object.__getattribute__(holder, "__dict__")[name] = value


def method_of(holder: Any, name: str) -> types.FunctionType | None:
    if value_of_attribute(holder, name) is not MISSING:
        return None
    for kind in type(holder).__mro__:
        if name in vars(kind):
            found = vars(kind)[name]
            if type(found) is property:
                found = found.fget
            return found if type(found) is types.FunctionType else None
    return None

"""Variables of functions, classes and slots, by name: how each is read and put."""

from __future__ import annotations

import dis
import functools
import types
from collections import deque
from collections.abc import Callable, Collection, Iterator, MutableMapping
from typing import Any, NamedTuple

from taskd.worker.discovery.project import is_looked_into, is_own
from taskd.worker.state.looks import is_plain
from taskd.worker.state.stored_attributes import (
    MISSING,
    put_attribute,
    slots,
    value_of_attribute,
)

_CHANGEABLE = (list, dict, set, deque)
_STORE_GLOBAL = dis.opmap["STORE_GLOBAL"]


class Access(NamedTuple):
    """`put` of what is only changed in place, and `delete` of what is always there, do nothing."""

    get: Callable[[], Any]
    put: Callable[[Any], Any] = lambda value: None
    delete: Callable[[], Any] = lambda: None


class Variables(MutableMapping[str, Any]):
    """Values in several places, by name: how each is read and put. `of`: what they belong to."""

    def __init__(self, accesses: dict[str, Access], of: Any = None) -> None:
        self.all, self.of = accesses, of

    def __getitem__(self, name: str) -> Any:
        value = self.all[name].get()
        if value is MISSING:
            raise KeyError(name)
        return value

    def __setitem__(self, name: str, value: Any) -> None:
        self.all[name].put(value)

    def __delitem__(self, name: str) -> None:
        self.all[name].delete()

    def __iter__(self) -> Iterator[str]:
        return (name for name, access in self.all.items() if access.get() is not MISSING)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def fixed(values: dict[str, Any]) -> Variables:
    """What is only changed in place: the arguments of a partial."""
    return Variables({k: Access(functools.partial(_same, v)) for k, v in values.items()})


def of_function(function: types.FunctionType) -> Variables:
    """The variables that a function keeps from call to call: in its closure, among its defaults,
    and those of its globals, of the script's modules and of its classes that it assigns or may
    change."""
    found: dict[str, Access] = {}
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        if name != "__class__":
            found[name] = Access(
                functools.partial(content_of, cell),
                functools.partial(setattr, cell, "cell_contents"),
                functools.partial(delattr, cell, "cell_contents"),
            )
    defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    for number, value in enumerate(defaults):
        if type(value) in _CHANGEABLE:
            found[f"default {number}"] = Access(functools.partial(_same, value))
    space, names, assigned = function.__globals__, *names_in(code)
    for name in sorted(names):
        value = space.get(name)
        if name in assigned or type(value) in _CHANGEABLE:
            found.setdefault(name, _global(space, name))
        elif isinstance(value, types.ModuleType) and is_own(value.__name__, value):
            for inner in sorted(names & vars(value).keys()):
                if is_plain(vars(value)[inner]):
                    found[f"{name}.{inner}"] = _global(vars(value), inner)
        elif isinstance(value, type):
            found |= {f"{name}.{n}": access for n, access in of_class(value, names).items()}
    return Variables(found, function)


def of_class(kind: type, names: Collection[str]) -> dict[str, Access]:
    if not is_looked_into(kind.__module__, ""):
        return {}
    return {
        name: Access(
            functools.partial(vars(kind).get, name, MISSING), functools.partial(setattr, kind, name)
        )
        for name in sorted({*names} & vars(kind).keys())
        if not name.startswith("__") and is_plain(vars(kind)[name])
    }


def of_slots(holder: Any) -> Variables:
    return Variables(
        {
            name: Access(
                functools.partial(value_of_attribute, holder, name),
                functools.partial(put_attribute, holder, name),
            )
            for name in slots(type(holder))
        },
        holder,
    )


@functools.cache  # asked once for its variables, once for what it calls
def names_in(code: types.CodeType) -> tuple[set[str], set[str]]:
    """The names of globals and attributes in a function and those inside it, and of the globals
    that are assigned."""
    names, assigned = {*code.co_names}, set[str]()
    if _STORE_GLOBAL in code.co_code[::2]:  # arguments and caches too: it may be another byte
        operations = dis.get_instructions(code)
        assigned = {o.argval for o in operations if o.opcode == _STORE_GLOBAL}
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            more = names_in(inner)
            names, assigned = names | more[0], assigned | more[1]
    return names, assigned


def content_of(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return MISSING


def _global(space: dict[str, Any], name: str) -> Access:
    return Access(
        functools.partial(space.get, name, MISSING),
        functools.partial(space.__setitem__, name),
        functools.partial(space.pop, name, None),
    )


def _same(value: Any) -> Any:
    return value

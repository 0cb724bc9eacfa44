"""State that the protected objects hold where no state_dict looks: what their hooks, schedules and
forwards keep in closures and globals, and the objects in attributes of modules and optimizers.

Found by what refers to it, so a replacement, which runs the same set-up, finds the same under the
same names; its plain values are recorded with the attributes (`state/attributes.py`). Looked into
are functions and classes of the script, and those of the library whose module, optimizer or
scheduler holds them. An object that holds a thread or a file is left alone: what it says of itself
holds in its process.
"""

from __future__ import annotations

import dis
import functools
import logging
import sys
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, MutableMapping
from typing import Any, NamedTuple

import torch
from torch.optim.lr_scheduler import LRScheduler

from taskd import raised
from taskd.worker.discovery.project import is_own
from taskd.worker.state import places
from taskd.worker.state.attributes import APART, REMEDY_VALUE
from taskd.worker.state.looks import ADDRESS, PARAMETER, Space, is_plain
from taskd.worker.state.stored_attributes import (
    MISSING,
    attributes,
    put_attribute,
    slots,
    stored,
    value_of_attribute,
)

log = logging.getLogger("taskd.worker")

DEPTH, SPACES = 5, 1_000  # how far around a protected object to search
REACHED = 300  # spaces from the script's variables: ~1 us each in every step
ITEMS = 64  # of a container that is looked into

_MODULE_HOOKS = (
    *("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks"),
    *("_state_dict_hooks", "_load_state_dict_post_hooks"),
)
_GLOBAL_HOOKS = [f"_global{kind}" for kind in _MODULE_HOOKS[:4]]  # of all modules
_PARAMETER_HOOKS = "_backward_hooks", "_post_accumulate_grad_hooks"
_OPTIMIZER_HOOKS = "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"
_STRANGE = {"torch", "taskd", "numpy", *sys.stdlib_module_names} - {"__main__"}
_CHANGEABLE = (list, dict, set, deque)
_STORE_GLOBAL = dis.opmap["STORE_GLOBAL"]
_MAPPINGS = (dict, OrderedDict, defaultdict, Counter)


class Access(NamedTuple):
    """`put` of what is only changed in place, and `delete` of what is always there, do nothing."""

    get: Callable[[], Any]
    put: Callable[[Any], Any] = lambda value: None
    delete: Callable[[], Any] = lambda: None


def find(
    modules: dict[str, torch.nn.Module],
    optimizers: dict[str, torch.optim.Optimizer],
    objects: dict[str, Any],
    known: Iterable[Any],
    wrappers: Iterable[torch.nn.Module] = (),
    names: Collection[str] = (),
) -> dict[str, Space]:
    """By name, what is held by those that are protected; `objects`: schedulers and the like.
    `known`: what is restored otherwise; `wrappers`: of the modules; `names`: of what a script adds
    to objects of torch's, which there may not be yet. Never raises: a search must not end a job."""
    search = Search({id(value) for value in known}, names=names)
    try:
        for name, root in modules.items():
            for path, module in root.named_modules():
                search.module(f"{name}.{path}" if path else name, module)
            for path, parameter in root.named_parameters():
                hooked = search.hooks(f"{name}.{path}", parameter, _PARAMETER_HOOKS)
                found = f"{name}.{path}{PARAMETER}"
                if hooked or stored(parameter) or found in names:
                    search.add(found, parameter.__dict__)
        search.hooks("modules", torch.nn.modules.module, _GLOBAL_HOOKS)
        for number, wrapper in enumerate(wrappers):
            found = f"wrapper {number}"
            search.foreign(found, wrapper, search.hooks(found, wrapper, _MODULE_HOOKS))
        for name, optimizer in optimizers.items():
            search.foreign(name, optimizer, search.hooks(name, optimizer, _OPTIMIZER_HOOKS))
            search.attributes(name, optimizer)
        for name, value in objects.items():
            if isinstance(value, LRScheduler):
                search.attributes(name, value)
    except Exception as error:
        raised.heed(error)
        log.warning("could not look for all that the protected objects hold", exc_info=True)
    return search.spaces


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


def of_function(function: types.FunctionType) -> Variables:
    """The variables that a function keeps from call to call: in its closure, among its defaults,
    and those of its globals, of the script's modules and of its classes that it assigns or may
    change."""
    found: dict[str, Access] = {}
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        if name != "__class__":
            found[name] = Access(
                functools.partial(_content, cell),
                functools.partial(setattr, cell, "cell_contents"),
                functools.partial(delattr, cell, "cell_contents"),
            )
    defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    for number, value in enumerate(defaults):
        if type(value) in _CHANGEABLE:
            found[f"default {number}"] = Access(functools.partial(_same, value))
    space, names, assigned = function.__globals__, *_names(code)
    for name in sorted(names):
        value = space.get(name)
        if name in assigned or type(value) in _CHANGEABLE:
            found.setdefault(name, _global(space, name))
        elif isinstance(value, types.ModuleType) and is_own(value.__name__, value):
            for inner in sorted(names & vars(value).keys()):
                if is_plain(vars(value)[inner]):
                    found[f"{name}.{inner}"] = _global(vars(value), inner)
        elif isinstance(value, type):
            found |= {f"{name}.{n}": access for n, access in _of_class(value, names).items()}
    return Variables(found, function)


def _of_class(kind: type, names: Collection[str]) -> dict[str, Access]:
    if not _is_looked_into(kind.__module__, ""):
        return {}
    return {
        name: Access(
            functools.partial(vars(kind).get, name, MISSING), functools.partial(setattr, kind, name)
        )
        for name in sorted({*names} & vars(kind).keys())
        if not name.startswith("__") and is_plain(vars(kind)[name])
    }


def _of_slots(holder: Any) -> Variables:
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
def _names(code: types.CodeType) -> tuple[set[str], set[str]]:
    """The names of globals and attributes in a function and those inside it, and of the globals
    that are assigned."""
    names, assigned = {*code.co_names}, set[str]()
    if _STORE_GLOBAL in code.co_code[::2]:  # arguments and caches too: it may be another byte
        operations = dis.get_instructions(code)
        assigned = {o.argval for o in operations if o.opcode == _STORE_GLOBAL}
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            more = _names(inner)
            names, assigned = names | more[0], assigned | more[1]
    return names, assigned


def _content(cell: types.CellType) -> Any:
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


class Search:
    """`reached`: from the script's variables; its functions are then not looked into, for what a
    loop's functions carry is known from their source (liveness.py)."""

    def __init__(self, known: set[int], reached: bool = False, names: Collection[str] = ()) -> None:
        self.spaces: dict[str, Space] = {}
        self._seen, self._reached, self._names = known, reached, names
        self._most = REACHED if reached else SPACES
        self._classes: set[type] = set()

    def add(self, name: str, values: MutableMapping[str, Any], apart: Collection[str] = ()) -> None:
        while name in self.spaces:  # two modules may have the same name
            name += "'"
        self.spaces[name] = Space(values, apart, remedy=REMEDY_VALUE, reached=self._reached)

    def module(self, name: str, module: torch.nn.Module) -> None:
        kind = type(module)
        self.foreign(name, module, self.hooks(name, module, _MODULE_HOOKS))
        self.attributes(name, module)
        self._class(kind)

    def foreign(self, name: str, holder: Any, hooked: bool) -> None:
        """What a script has added to an object of torch's; the others have a space already."""
        kind: Any = type(holder)
        known = _attributes_of(kind)
        added = hooked or name in self._names or not stored(holder).keys() <= known
        if added and kind.__module__.startswith("torch."):
            self.add(name, stored(holder), known)

    def hooks(self, name: str, holder: Any, kinds: Iterable[str]) -> bool:
        """Whether the script has put any there."""
        found = False
        for kind in kinds:
            hooks = list((getattr(holder, kind, None) or {}).values())
            # taskd's own come and go
            mine = [h for h in hooks if _module_of(h).partition(".")[0] not in ("taskd", "torch")]
            for number, hook in enumerate(mine):
                found = True
                self.look(f"{name}.{kind}[{number}]", hook, _library(type(holder)), 0)
        return found

    def _class(self, kind: type) -> None:
        for one in kind.__mro__:
            if one in self._classes or not _is_looked_into(one.__module__, ""):
                continue
            self._classes.add(one)
            name, names = f"{one.__module__}.{one.__qualname__}", set[str]()
            if self._reached:
                names |= vars(one).keys()
            for key, member in () if self._reached else vars(one).items():
                if isinstance(member, (staticmethod, classmethod)):
                    member = member.__func__
                elif isinstance(member, property):
                    member = member.fget
                if type(member) is types.FunctionType:
                    names |= _names(member.__code__)[0]
                    self.look(f"{name}.{key}", member, "", 0)
            if found := _of_class(one, names):
                self.add(name, Variables(found))

    def attributes(self, name: str, holder: Any) -> None:
        for key, value in list(stored(holder).items()):
            if isinstance(key, str) and key not in APART and not key.endswith("_hooks"):
                self.look(f"{name}.{key}", value, _library(type(holder)), 0)

    def look(self, name: str, value: Any, library: str, depth: int, listed: bool = False) -> None:
        """`listed`: in a list, of which no space has the items."""
        kind = type(value)
        if depth > DEPTH or len(self.spaces) >= self._most or id(value) in self._seen:
            return
        if is_plain(value) and not (listed and kind is dict):
            return
        self._seen.add(id(value))
        if self._reached and id(stored(value)) in self._seen:
            return
        if kind in (list, tuple, deque, *_MAPPINGS):
            if len(value) <= ITEMS:
                maps = isinstance(value, dict)
                if maps and all(map(_is_key, value)):
                    self.add(name, value)
                for key, item in list(value.items() if maps else enumerate(value)):
                    self.look(f"{name}[{key!r}]", item, library, depth + 1, not maps)
        elif kind is functools.partial:
            self.look(name, value.func, library, depth)
            given = {f"argument {i}": held for i, held in enumerate(value.args)} | value.keywords
            inside = {k: Access(functools.partial(_same, v)) for k, v in given.items()}
            self.add(f"{name}()", Variables(inside))
            for key, item in given.items():
                self.look(f"{name}.{key}", item, library, depth + 1)
        elif kind is types.MethodType:
            self.look(f"{name}.__self__", value.__self__, library, depth)
            self.look(name, value.__func__, library, depth)
        elif kind is types.FunctionType and self._reached:
            if stored(value):
                self.add(f"{name}.__dict__", value.__dict__)
        elif kind is types.FunctionType:
            if _is_looked_into(value.__module__ or "", library):
                self._function(name, value, library, depth)
        elif kind is type(_cached):
            self.look(name, value.__wrapped__, library, depth)
        elif isinstance(value, type):
            self._class(value)
        elif _is_looked_into(str(kind.__module__), library) and (
            (self._reached and isinstance(value, torch.nn.Module))
            or not (isinstance(value, (*places.APART, torch.Generator)) or _is_source(kind))
        ):
            self._object(name, value, library, depth)

    def _function(self, name: str, function: types.FunctionType, library: str, depth: int) -> None:
        variables = of_function(function)
        if variables.all:
            self.add(name, variables)
        if stored(function):
            self.add(f"{name}.__dict__", function.__dict__)
        for key, value in variables.items():
            self.look(f"{name}.{key}", value, library, depth + 1)
        space, names = function.__globals__, sorted(_names(function.__code__)[0])
        for key in names:  # what it calls, or has as an object
            value = space.get(key)
            if isinstance(value, types.ModuleType):
                if is_own(value.__name__, value):
                    for inner in names:
                        found = vars(value).get(inner)
                        self.look(f"{value.__name__}.{inner}", found, library, depth + 1)
            elif value is not None and key not in variables.all:
                self.look(f"{name}.{key}", value, library, depth + 1)

    def _object(self, name: str, value: Any, library: str, depth: int) -> None:
        rows = dict(attributes(value))
        if any(places.is_live(item) for item in rows.values()):
            return
        if isinstance(value, torch.nn.Module):
            self.add(name, stored(value), APART)
            self.add(f"{name}._buffers", value._buffers)
        elif type(value).__dictoffset__:
            self.add(name, stored(value))
        if slots(type(value)):
            self.add(f"{name}.__slots__", _of_slots(value))
        for key, item in rows.items():
            self.look(f"{name}.{key}", item, library, depth + 1)
        self._class(type(value))


@functools.cache
def _attributes_of(kind: type) -> frozenset[str]:
    """The names that occur in a class of torch's: attributes that it has itself."""
    found = set(APART)
    drives = (LRScheduler,) if issubclass(kind, torch.optim.Optimizer) else ()
    for one in (*kind.__mro__, *drives):  # a scheduler marks the optimizer that it drives
        for member in vars(one).values():
            if type(member) is types.FunctionType:
                found |= _names(member.__code__)[0]
    return frozenset(found)


def _is_source(kind: type) -> bool:
    """Whether data comes from it: whoever loops over it has its place."""
    return any(hasattr(kind, name) for name in ("__next__", "__iter__", "__getitem__"))


def _is_key(key: Any) -> bool:
    parts = key if type(key) is tuple else (key,)
    return all(type(p) is str or (type(p) in (int, bool) and p < ADDRESS) for p in parts)


@functools.lru_cache(maxsize=1)
def _cached() -> None:
    """A function of the kind that functools makes."""


def _is_looked_into(module: str, library: str) -> bool:
    first = module.partition(".")[0]
    return (library == first and first not in _STRANGE) or is_own(module, sys.modules.get(module))


def _library(kind: type) -> str:
    return str(kind.__module__).partition(".")[0]


def _module_of(hook: Any) -> str:
    hook = hook.func if isinstance(hook, functools.partial) else hook
    return str(getattr(hook, "__module__", None) or type(hook).__module__)

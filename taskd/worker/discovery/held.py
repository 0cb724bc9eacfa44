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
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from typing import Any

import torch

from taskd.worker.discovery.project import is_own
from taskd.worker.state import places
from taskd.worker.state.attributes import APART, REMEDY_VALUE, Space, is_plain
from taskd.worker.state.stored_attributes import MISSING, stored

DEPTH, SPACES = 5, 1_000  # how far around a protected object to search
ITEMS = 64  # of a container that is looked into

_MODULE_HOOKS = (
    *("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks"),
    *("_state_dict_hooks", "_load_state_dict_post_hooks"),
)
_PARAMETER_HOOKS = "_backward_hooks", "_post_accumulate_grad_hooks"
_OPTIMIZER_HOOKS = "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"
_STRANGE = {"torch", "taskd", "numpy", *sys.stdlib_module_names} - {"__main__"}
_CHANGEABLE = (list, dict, set, deque)
_STORE_GLOBAL = dis.opmap["STORE_GLOBAL"]
Access = tuple[Callable[[], Any], Callable[[Any], None]]


def find(
    modules: dict[str, torch.nn.Module],
    optimizers: dict[str, torch.optim.Optimizer],
    objects: dict[str, Any],
    known: Iterable[Any],
) -> dict[str, Space]:
    """By name, what is held by those that are protected; `objects`: schedulers and the like.
    `known`: what is restored otherwise."""
    search = _Search({id(value) for value in known})
    for name, root in modules.items():
        for path, module in root.named_modules():
            search.module(f"{name}.{path}" if path else name, module)
        for path, parameter in root.named_parameters():
            search.hooks(f"{name}.{path}", parameter, _PARAMETER_HOOKS)
    for name, optimizer in optimizers.items():
        search.hooks(name, optimizer, _OPTIMIZER_HOOKS)
        search.attributes(name, optimizer)
    for name, value in objects.items():
        if isinstance(value, torch.optim.lr_scheduler.LRScheduler):
            search.attributes(name, value)
    return search.spaces


class Variables(MutableMapping[str, Any]):
    """The variables that a function keeps from call to call: in its closure, among its defaults,
    and those of its globals that it assigns or may change."""

    def __init__(self, function: types.FunctionType) -> None:
        self.all: dict[str, Access] = {}
        code = function.__code__
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
            if name != "__class__":
                self.all[name] = _cell(cell)
        for number, value in enumerate(function.__defaults__ or ()):
            if type(value) in _CHANGEABLE:  # in place alone
                self.all[f"default {number}"] = functools.partial(_same, value), _ignore
        space = function.__globals__
        names = {name for name in code.co_names if type(space.get(name)) in _CHANGEABLE}
        if _STORE_GLOBAL in code.co_code[::2]:  # arguments and caches too: it may be another byte
            operations = dis.get_instructions(code)
            names |= {o.argval for o in operations if o.opcode == _STORE_GLOBAL}
        for name in sorted(names - self.all.keys()):
            self.all[name] = _global(space, name)

    def __getitem__(self, name: str) -> Any:
        value = self.all[name][0]()
        if value is MISSING:
            raise KeyError(name)
        return value

    def __setitem__(self, name: str, value: Any) -> None:
        self.all[name][1](value)

    def __delitem__(self, name: str) -> None:
        """It had no value yet: the next call assigns it before it reads it."""

    def __iter__(self) -> Iterator[str]:
        return (name for name, (get, _) in self.all.items() if get() is not MISSING)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _cell(cell: types.CellType) -> Access:
    def get() -> Any:
        try:
            return cell.cell_contents
        except ValueError:  # not assigned yet
            return MISSING

    return get, functools.partial(setattr, cell, "cell_contents")


def _global(space: dict[str, Any], name: str) -> Access:
    return functools.partial(space.get, name, MISSING), functools.partial(space.__setitem__, name)


def _same(value: Any) -> Any:
    return value


def _ignore(value: Any) -> None:
    pass


class _Search:
    def __init__(self, known: set[int]) -> None:
        self.spaces: dict[str, Space] = {}
        self._seen = known
        self._classes: set[type] = set()

    def module(self, name: str, module: torch.nn.Module) -> None:
        kind = type(module)
        self.hooks(name, module, _MODULE_HOOKS)
        self.attributes(name, module)
        for one in kind.__mro__:
            if one not in self._classes and _is_looked_into(one.__module__, ""):
                self._classes.add(one)
                for key, function in vars(one).items():
                    if type(function) is types.FunctionType:
                        self._look(f"{one.__qualname__}.{key}", function, "", 0)

    def hooks(self, name: str, holder: Any, kinds: Iterable[str]) -> None:
        for kind in kinds:
            hooks = list((getattr(holder, kind, None) or {}).values())
            # taskd's own come and go
            mine = [h for h in hooks if _module_of(h).partition(".")[0] not in ("taskd", "torch")]
            for number, hook in enumerate(mine):
                self._look(f"{name}.{kind}[{number}]", hook, _library(type(holder)), 0)

    def attributes(self, name: str, holder: Any) -> None:
        for key, value in list(stored(holder).items()):
            if isinstance(key, str) and key not in APART and not key.endswith("_hooks"):
                self._look(f"{name}.{key}", value, _library(type(holder)), 0)

    def _look(self, name: str, value: Any, library: str, depth: int, listed: bool = False) -> None:
        """`listed`: in a list, of which no space has the items."""
        kind = type(value)
        if depth > DEPTH or len(self.spaces) >= SPACES or id(value) in self._seen:
            return
        if is_plain(value) and not (listed and kind is dict):
            return
        self._seen.add(id(value))
        if kind in (list, tuple, deque, dict):
            if len(value) <= ITEMS:
                if kind is dict and all(type(key) is str for key in value):
                    self.spaces[name] = Space(value, remedy=REMEDY_VALUE)
                rows = value.items() if kind is dict else enumerate(value)
                for key, item in list(rows):
                    self._look(f"{name}[{key!r}]", item, library, depth + 1, kind is not dict)
        elif kind is functools.partial:
            self._look(name, value.func, library, depth)
            self._look(f"{name}.args", value.args, library, depth)
            self._look(f"{name}.keywords", value.keywords, library, depth)
        elif kind is types.MethodType:
            self._look(f"{name}.__self__", value.__self__, library, depth)
            self._look(name, value.__func__, library, depth)
        elif kind is types.FunctionType:
            if _is_looked_into(value.__module__ or "", library):
                self._function(name, value, library, depth)
        elif _is_looked_into(kind.__module__, library) and not isinstance(
            value, (*places.APART, torch.Generator)
        ):
            self._object(name, value, library, depth)

    def _function(self, name: str, function: types.FunctionType, library: str, depth: int) -> None:
        variables = Variables(function)
        if variables.all:
            self.spaces[name] = Space(variables, remedy=REMEDY_VALUE)
        if stored(function):
            self.spaces[f"{name}.__dict__"] = Space(function.__dict__, remedy=REMEDY_VALUE)
        for key, value in variables.items():
            self._look(f"{name}.{key}", value, library, depth + 1)
        for key in function.__code__.co_names:  # what it calls, or has as an object
            value = function.__globals__.get(key)
            if value is not None and key not in variables.all:
                self._look(f"{name}.{key}", value, library, depth + 1)

    def _object(self, name: str, value: Any, library: str, depth: int) -> None:
        held = stored(value)
        if any(places.is_live(item) for item in held.values()):
            return
        if held:
            self.spaces[name] = Space(held, remedy=REMEDY_VALUE)
        for key, item in list(held.items()):
            self._look(f"{name}.{key}", item, library, depth + 1)
        if callable(value):
            self._look(f"{name}()", type(value).__call__, library, depth + 1)


def _is_looked_into(module: str, library: str) -> bool:
    first = module.partition(".")[0]
    return (library == first and first not in _STRANGE) or is_own(module, sys.modules.get(module))


def _library(kind: type) -> str:
    return str(kind.__module__).partition(".")[0]


def _module_of(hook: Any) -> str:
    hook = hook.func if isinstance(hook, functools.partial) else hook
    return str(getattr(hook, "__module__", None) or type(hook).__module__)

"""State that the protected objects hold where no state_dict looks: what their hooks, schedules and
forwards keep in closures and globals, and the objects in attributes of modules and optimizers.

Found by what refers to it, so a replacement, which runs the same set-up, finds the same under the
same names; its plain values are recorded with the attributes (`state/attributes.py`). Looked into
are functions and classes of the script, and those of the library whose module, optimizer or
scheduler holds them. An object that holds a thread or a file is left alone: what it says of itself
holds in its process.
"""

from __future__ import annotations

import functools
import logging
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Collection, Iterable, MutableMapping
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from taskd import raised
from taskd.worker.discovery.members import (
    Variables,
    fixed,
    names_in,
    of_class,
    of_function,
    of_slots,
)
from taskd.worker.discovery.project import is_looked_into, is_own
from taskd.worker.state import places
from taskd.worker.state.attributes import APART, REMEDY_VALUE
from taskd.worker.state.looks import ADDRESS, PARAMETER, Space, is_plain
from taskd.worker.state.stored_attributes import (
    attributes,
    slots,
    stored,
)

log = logging.getLogger("taskd.worker")

DEPTH, SPACES = 5, 1_000  # how far around a protected object to search
REACHED = 300  # spaces from the script's variables, which are looked at in every step
LIBRARIES, DEEPER = 200, 9  # more of them in what the variables hold of libraries, and how deep
ITEMS = 64  # of a container that is looked into

_MODULE_HOOKS = (
    *("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks"),
    *("_state_dict_hooks", "_load_state_dict_post_hooks"),
)
_GLOBAL_HOOKS = [f"_global{kind}" for kind in _MODULE_HOOKS[:4]]  # of all modules
_PARAMETER_HOOKS = "_backward_hooks", "_post_accumulate_grad_hooks"
_OPTIMIZER_HOOKS = "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"
_DATA = (torch.utils.data.Sampler, torch.utils.data.DataLoader)
_READ = {"dataset", "datasets"}  # what torch's have of the script's
_MAPPINGS = (dict, OrderedDict, defaultdict, Counter)


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


class Search:
    """`reached`: from the script's variables; its functions are then not looked into, for what a
    loop's functions carry is known from their source (liveness.py)."""

    def __init__(self, known: set[int], reached: bool = False, names: Collection[str] = ()) -> None:
        self.spaces: dict[str, Space] = {}
        self._known, self._seen = frozenset(known), known
        self._reached, self._names = reached, names
        self._most, self.full = REACHED if reached else SPACES, False
        self._deepest, self._says = DEPTH, True
        self._classes: set[type] = set()

    def add(
        self,
        name: str,
        values: MutableMapping[str, Any],
        apart: Collection[str] = (),
        owner: Any = None,
    ) -> None:
        if len(self.spaces) >= self._most:
            if not self.full and self._says:
                log.warning("not protected: more than %d objects, such as %s", self._most, name)
            self.full = True
            return
        while name in self.spaces:  # two modules may have the same name
            name += "'"
        space = Space(values, apart, remedy=REMEDY_VALUE, reached=self._reached)
        if self._reached:
            space.belongs_to(owner)
        self.spaces[name] = space

    def room_for(self, more: int) -> None:
        """Look deeper from now on, at `more` objects at most."""
        self._most, self._deepest = len(self.spaces) + more, DEEPER
        self.full, self._says = False, False
        # what was passed over is looked at again
        self._seen = {*self._known, *(id(space.attributes) for space in self.spaces.values())}

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
            if one in self._classes or not is_looked_into(one.__module__, ""):
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
                    names |= names_in(member.__code__)[0]
                    self.look(f"{name}.{key}", member, "", 0)
            if found := of_class(one, names):
                self.add(name, Variables(found))

    def attributes(self, name: str, holder: Any) -> None:
        for key, value in list(stored(holder).items()):
            if isinstance(key, str) and key not in APART and not key.endswith("_hooks"):
                self.look(f"{name}.{key}", value, _library(type(holder)), 0)

    def look(self, name: str, value: Any, library: str, depth: int, listed: bool = False) -> None:
        """`listed`: in a list, of which no space has the items."""
        kind = type(value)
        if depth > self._deepest or self.full or id(value) in self._seen:
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
            self.add(f"{name}()", fixed(given))
            for key, item in given.items():
                self.look(f"{name}.{key}", item, library, depth + 1)
        elif kind is types.MethodType:
            self.look(f"{name}.__self__", value.__self__, library, depth)
            self.look(name, value.__func__, library, depth)
        elif kind is types.FunctionType and self._reached:
            if stored(value):
                self.add(f"{name}.__dict__", value.__dict__)
        elif kind is types.FunctionType:
            if is_looked_into(value.__module__ or "", library):
                self._function(name, value, library, depth)
        elif kind is type(_cached):
            self.look(name, value.__wrapped__, library, depth)
        elif isinstance(value, type):
            self._class(value)
        elif self._reached and issubclass(kind, torch.nn.Module):
            self._module(name, value, library)
        elif issubclass(kind, torch.utils.data.DataLoader) or (
            issubclass(kind, torch.utils.data.Dataset) and kind.__module__.startswith("torch.")
        ):
            for key in _READ & stored(value).keys():
                self.look(f"{name}.{key}", stored(value)[key], library, depth + 1)
        elif is_looked_into(str(kind.__module__), library) and not (
            issubclass(kind, (*places.APART, torch.Generator)) or is_source(kind)
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
        space, names = function.__globals__, sorted(names_in(function.__code__)[0])
        for key in names:  # what it calls, or has as an object
            value = space.get(key)
            if isinstance(value, types.ModuleType):
                if is_own(value.__name__, value):
                    for inner in names:
                        found = vars(value).get(inner)
                        self.look(f"{value.__name__}.{inner}", found, library, depth + 1)
            elif value is not None and key not in variables.all:
                self.look(f"{name}.{key}", value, library, depth + 1)

    def _module(self, name: str, root: torch.nn.Module, library: str) -> None:
        """One that was not given, with those inside."""
        for path, module in root.named_modules():
            if path and id(module) in self._seen:
                continue
            self._seen.add(id(module))
            inner = f"{name}.{path}" if path else name
            if is_looked_into(type(module).__module__, library):
                self.add(inner, stored(module), APART, owner=module)
                for key, value in list(stored(module).items()):
                    if key not in APART:
                        self.look(f"{inner}.{key}", value, library, 1)
            if module._buffers and id(module._buffers) not in self._seen:
                self.add(f"{inner}._buffers", module._buffers, owner=module)

    def _object(self, name: str, value: Any, library: str, depth: int) -> None:
        rows = dict(attributes(value))
        if any(places.is_live(item) for item in rows.values()):
            return
        if type(value).__dictoffset__:
            self.add(name, stored(value), owner=value)
        if slots(type(value)):
            self.add(f"{name}.__slots__", of_slots(value))
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
                found |= names_in(member.__code__)[0]
    return frozenset(found)


def is_source(kind: type) -> bool:
    """Whether data comes from it: whoever loops over it has its place. A metric, a history or a
    buffer that can be indexed or iterated over is none."""
    return hasattr(kind, "__next__") or issubclass(kind, _DATA)


def _is_key(key: Any) -> bool:
    parts = key if type(key) is tuple else (key,)
    return all(type(p) is str or (type(p) in (int, bool) and p < ADDRESS) for p in parts)


@functools.lru_cache(maxsize=1)
def _cached() -> None:
    """A function of the kind that functools makes."""


def _library(kind: type) -> str:
    return str(kind.__module__).partition(".")[0]


def _module_of(hook: Any) -> str:
    hook = hook.func if isinstance(hook, functools.partial) else hook
    return str(getattr(hook, "__module__", None) or type(hook).__module__)

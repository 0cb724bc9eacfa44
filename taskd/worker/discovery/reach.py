"""Finds the objects that a script can reach where it calls `protect`, and their names.

The names are the script's own (`main.train.sampler.generator`), so a replacement, which runs the
same script, finds the same objects under the same names. No code of the script runs: attributes are
read from where they are stored.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import sys
import sysconfig
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Any

import torch

# objects; ~1 us each. A data set that is a list of a million samples is not searched
LIMIT = 100_000
ITEMS = 1_000  # of one container; larger ones hold data
Root = tuple[str, Any]

_DATA = (
    str,
    bytes,
    bytearray,
    memoryview,
    int,
    float,
    complex,
    bool,
    type(None),
    torch.Tensor,
    torch.dtype,
    torch.device,
)
_CONTAINERS = (list, tuple, deque)
# also if installed in place, outside site-packages
_OURS = {"taskd", "torch", "numpy"}
# modules of the standard library whose objects may hold the script's
_OPENED = {
    "__main__",
    "builtins",
    "functools",
    "collections",
    "types",
    "argparse",
    "contextlib",
    "random",
    "weakref",
}


def of_caller() -> list[Root]:
    """The variables of taskd's caller, of its callers, and of the script's own modules."""
    roots: list[Root] = []
    frame = sys._getframe(1)
    found: Any = frame
    while found is not None:
        name = found.f_globals.get("__name__", "")
        if (
            name.partition(".")[0] not in ("taskd", "runpy", "torch")
            and found.f_code.co_name != "<module>"
        ):
            roots.append((found.f_code.co_name, variables(found)))
        found = found.f_back
    return roots + own_modules()


def own_modules() -> list[Root]:
    """The script's own modules."""
    main = sys.modules.get("__main__")
    roots = [("", vars(main))] if main is not None else []
    found = (row for row in (*_own, *new_modules()) if row[0] != "__main__" and is_own(*row))
    return roots + [(name, vars(module)) for name, module in found]


def new_modules() -> list[Root]:
    """All modules; in a fork those that the zygote had not loaded. To look at the others again
    would copy the memory that they are in."""
    # without bytecode, so that no thread imports meanwhile
    later = list(itertools.takewhile(_last.__ne__, reversed(sys.modules)))
    return [(name, sys.modules.get(name)) for name in reversed(later)]


def know_modules() -> None:
    """Called by the zygote, which has loaded what it will load."""
    global _last, _own
    _own = [row for row in new_modules() if is_own(*row)]
    _last = next(reversed(sys.modules))


def variables(frame: types.FrameType) -> dict[str, Any]:
    """A copy of a frame's local variables that leaves nothing behind on the frame.

    Before Python 3.13, `f_locals` of a function is a dict that stays on its frame, so whatever the
    variables held at that moment lives until the function returns. Its variables are taken out of
    it again, unless somebody else holds it (the script has called locals(), a debugger is at work).
    What exec() has put there is not a variable of the code and stays."""
    code = frame.f_code
    seen = frame.f_locals
    found = dict(seen)
    function = code.co_flags & inspect.CO_OPTIMIZED and type(seen) is dict
    # the frame, this function, and the argument of getrefcount
    if function and sys.getrefcount(seen) <= 3:
        for name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
            seen.pop(name, None)
    return found


def is_own(name: str, module: Any) -> bool:
    """Whether the user wrote this module."""
    if name == "__main__":
        return True
    if type(module) is not types.ModuleType or name.partition(".")[0] in _OURS:
        return False
    file = module.__dict__.get("__file__")
    return (
        isinstance(file, str)
        and not file.startswith(_INSTALLED)
        and "-packages/" not in file
        and file[:1] != "<"
    )


def find(roots: list[Root], wanted: Callable[[type], bool], limit: int = LIMIT) -> list[Root]:
    """(name, object) of each reachable object whose type is `wanted`, nearest first, each once."""
    found: list[Root] = []
    asked: dict[type, bool] = {}
    seen = {id(value) for _, value in roots}
    queue = deque(roots)
    own = {
        value["__name__"]
        for _, value in roots
        if isinstance(value, dict) and isinstance(value.get("__name__"), str)
    }
    for _ in range(limit):
        if not queue:
            break
        path, holder = queue.popleft()
        for step, value in _inside(holder, own):
            kind = type(value)
            if kind not in asked:
                asked[kind] = wanted(kind)
            data = kind in _DATA
            if (data and not asked[kind]) or id(value) in seen:
                continue
            seen.add(id(value))
            name = path + step if path else step.lstrip(".")
            if asked[kind]:
                found.append((name, value))
            if not data:
                queue.append((name, value))
    return found


def _inside(holder: Any, own: set[str]) -> Iterator[tuple[str, Any]]:
    """What `holder` refers to, as (".name" or "[key]", value)."""
    kind = type(holder)
    if issubclass(kind, dict):
        if dict.__len__(holder) <= ITEMS or "__name__" in holder:
            for key, value in list(dict.items(holder)):
                if isinstance(key, str) and not key.startswith("__"):
                    yield f".{key}", value
                elif isinstance(key, (int, tuple)):
                    yield f"[{key!r}]", value
        if kind in (dict, OrderedDict, defaultdict):
            return
    elif issubclass(kind, _CONTAINERS):
        if len(holder) <= ITEMS:
            yield from ((f"[{i}]", value) for i, value in enumerate(holder))
    elif kind is types.FunctionType:
        for name, cell in zip(holder.__code__.co_freevars, holder.__closure__ or (), strict=False):
            try:
                yield f".{name}", cell.cell_contents
            except ValueError:  # not assigned yet
                continue
        yield from ((f".<default {i}>", value) for i, value in enumerate(holder.__defaults__ or ()))
    elif kind is types.MethodType:
        yield ".__self__", holder.__self__
    elif kind is functools.partial:
        yield ".func", holder.func
        yield from ((f".<argument {i}>", value) for i, value in enumerate(holder.args))
        yield from ((f".{name}", value) for name, value in holder.keywords.items())
    elif kind is types.GeneratorType:
        frame = holder.gi_frame
        if frame is not None:
            yield from ((f".{name}", value) for name, value in variables(frame).items())
    elif issubclass(kind, type):
        if holder.__module__ in own:
            yield from (
                (f".{name}", value)
                for name, value in vars(holder).items()
                if not name.startswith("__")
            )
        return
    elif issubclass(kind, types.ModuleType):
        return  # the script's own modules are roots
    top = str(kind.__module__).partition(".")[0]
    if top not in sys.stdlib_module_names or top in _OPENED:
        yield from _attributes(holder)


def _attributes(holder: Any) -> Iterator[tuple[str, Any]]:
    try:
        attributes = object.__getattribute__(holder, "__dict__")
    except AttributeError:
        attributes = None
    if type(attributes) is dict:
        yield from (
            (f".{name}", value) for name, value in list(attributes.items()) if isinstance(name, str)
        )
    for name, member in _slots(type(holder)):
        try:
            yield f".{name}", member.__get__(holder)
        except AttributeError:  # not assigned yet
            continue


def _slots(kind: type) -> list[tuple[str, Any]]:
    if kind not in _members:
        rows = [
            row
            for base in kind.__mro__
            for row in vars(base).items()
            if not row[0].startswith("__")
        ]
        _members[kind] = [
            (name, member) for name, member in rows if type(member) is types.MemberDescriptorType
        ]
    return _members[kind]


_paths = sysconfig.get_paths()  # takes 2 ms
_INSTALLED = tuple(_paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_last = ""  # of the zygote's modules
_own: list[Root] = []  # the script's own among them
_members: dict[type, list[tuple[str, Any]]] = {}

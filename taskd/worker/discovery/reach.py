"""Finds the objects that a script can reach where it calls `protect`, and their names.

The names are the script's own (`main.train.sampler.generator`), so a replacement, which runs the
same script, finds the same objects under the same names. No code of the script runs: attributes are
read from where they are stored.
"""

from __future__ import annotations

import functools
import sys
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Any

import torch

from taskd.worker.discovery import frames, project
from taskd.worker.state.stored_attributes import attributes

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
    for frame in frames.stack():
        module = str(frame.f_globals.get("__name__", ""))
        if frame.f_code.co_name == "<module>":
            if module == "__main__":
                break  # what is around it has started the script
        elif module.partition(".")[0] not in ("taskd", "runpy", "torch"):
            roots.append((frame.f_code.co_name, frames.variables(frame)))
    return roots + project.own_modules()


def find(
    roots: list[Root],
    wanted: Callable[[type], bool],
    limit: int = LIMIT,
    entered: Callable[[type], bool] = lambda kind: True,
) -> list[Root]:
    """(name, object) of each reachable object whose type is `wanted`, nearest first, each once.
    `entered`: the types that are looked into."""
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
            if not data and entered(kind):
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
            yield from ((f".{name}", value) for name, value in frames.variables(frame).items())
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
        yield from ((f".{name}", value) for name, value in attributes(holder))

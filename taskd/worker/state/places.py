"""What a loader keeps from pass to pass, which a replacement lacks because it has not iterated the
earlier passes: counters of torch's loaders and samplers, and what the pass has changed in the
attributes of the script's own samplers, data sets and collators.

Such an attribute is recorded once it differs from what it was when the loader was first seen: a
replacement's set-up has made the rest again. Where a change shows that is no plain value (a file
that was opened, a cache of objects), nothing of that object is recorded: a flag without what it
describes is worse than neither. What worker processes change stays in their copies. In both cases
the batches tell, which are compared.
"""

from __future__ import annotations

import logging
import random
import sys
import types
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Sampler

from taskd.worker.state import fabric, loading, plain
from taskd.worker.state.stored_attributes import into, put_attribute, stored

log = logging.getLogger("taskd.worker")

DEPTH, OBJECTS, ITEMS = 5, 200, 64  # how far around a loader, and into its containers, to search
LARGEST = 1 << 20  # bytes of an attribute; a larger one is data
LONGEST = 1 << 16  # items of a container, bytes of a text
ATOMS = (bool, int, float, str, type(None))
ROOT = ""  # the way to the loader itself
CONTAINERS = (list, tuple, dict, set)
CODE = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType)

Values = dict[str, bytes]  # attributes by name, each encoded


def generators(loader: Any) -> list[Any]:
    """The generators that a loader, its samplers and its data set hold, in an order that depends
    only on names."""
    return [value for _, value in _around(loader) if is_generator(value)]


def is_generator(value: Any) -> bool:
    """Whether `value` is a generator, other than the process-wide ones, which every record has."""
    if isinstance(value, torch.Generator):
        return value is not torch.default_generator
    if isinstance(value, random.Random):
        return value is not random._inst and not isinstance(value, random.SystemRandom)
    numpy = sys.modules.get("numpy")
    if numpy is None or "numpy.random" not in sys.modules:
        return False
    if isinstance(value, numpy.random.RandomState):
        return value is not numpy.random.mtrand._rand
    return isinstance(value, numpy.random.Generator)


def place(loader: Any) -> bytes:
    """Where a loader is between two passes: the counters of torch's loaders and samplers (`epoch`,
    `iteration`); its own state, which torch's have not: asking for it would begin a pass; and the
    attributes that have changed."""
    around = dict(_around(loader))
    counters = [_atoms(value) for value in around.values() if _counts(value)]
    own = b"" if isinstance(loader, DataLoader) else loading.state(loader)
    held = {path: look.plain for path, look in _looks(around).items() if look.changed}
    if own:
        held.pop(ROOT, None)
    return plain.encode([counters, own, held])


def at_end(data: bytes, loader: Any) -> bytes:
    """What `place` returned at the start of the pass, with where the loader is at its end."""
    counters, own, held = plain.decode(data)[:3]
    return plain.encode([counters, own, held, place(loader)])


def put_place(loader: Any, data: bytes) -> None:
    """Restore what `place` returned. Raises RuntimeError if the replacement's loader is built
    differently."""
    own = plain.decode(data)[1]
    _put(loader, data)
    if own:
        loading.load(loader, own)


def put_end(loader: Any, data: bytes) -> None:
    """The loader is at the end of the pass: restore its place there, of what `at_end` returned."""
    if end := plain.decode(data)[3:]:
        _put(loader, end[0])


def shares(loader: Any, objects: set[int]) -> bool:
    """Whether it reads one of these, which are given by their ids."""
    return any(
        not objects.isdisjoint((id(value), *map(id, stored(value).values())))
        for _, value in _around(loader)
    )


def _put(loader: Any, data: bytes) -> None:
    around = dict(_around(loader))
    here = [value for value in around.values() if _counts(value)]
    kept, own, held = plain.decode(data)[:3]
    if not isinstance(kept, list) or len(kept) != len(here):
        raise RuntimeError(
            f"the loader {type(loader).__name__} is built differently from that of the rank's"
            " previous process"
        )
    for value, atoms in zip(here, kept, strict=True):
        present = _atoms(value)
        for name, atom in atoms.items():
            if name not in present or present[name] != atom:
                object.__setattr__(value, name, atom)
    looks = _looks(around)
    if own:
        looks.pop(ROOT, None)
    for path, look in looks.items():
        if path in held or look.changed:  # by a first try to begin the loader
            look.put(held.get(path, look.first))


# -- the attributes of the script's own objects ----------------------------------------------------


class _Look:
    """The attributes of an object: the plain ones, and what the others are."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.plain: Values = {}
        self.others: dict[str, int] = {}
        for name, attribute in stored(value).items():
            data = _encoded(attribute)
            if data:
                self.plain[name] = data
            elif not is_generator(attribute):
                self.others[name] = id(attribute)
        known = _first.get(id(value))
        if known is None or known[0]() is not value:
            known = weakref.ref(value), self.plain, self.others
            _first[id(value)] = known
        self.first, others = known[1:]
        self.changed = self.plain != self.first and self.others == others

    def put(self, values: Values) -> None:
        for name in self.plain.keys() - values.keys():
            del stored(self.value)[name]
        for name, data in values.items():
            if self.plain.get(name) != data:
                present = stored(self.value).get(name)
                put_attribute(self.value, name, into(present, plain.decode(data)))


# id of an object -> the object, and its attributes when it was first seen
_first: dict[int, tuple[weakref.ref[Any], Values, dict[str, int]]] = {}


def _looks(around: dict[str, Any]) -> dict[str, _Look]:
    for gone in [number for number, (there, *_) in _first.items() if there() is None]:
        del _first[gone]
    return {path: _Look(value) for path, value in around.items() if _is_own(value)}


def _is_own(value: Any) -> bool:
    """Whether it is of a class of the script, or of a library for data."""
    kind = type(value)
    first = kind.__module__.partition(".")[0]
    known = first in ("torch", "taskd", "numpy") or first in sys.stdlib_module_names
    return (not known or first == "__main__") and kind.__weakrefoffset__ != 0


def _encoded(value: Any) -> bytes:
    """A plain value that is not too large; b"" for others."""
    if not _is_small(value):
        return b""
    try:
        data = plain.encode(value)
    except plain.Unrecordable:
        return b""
    return data if len(data) <= LARGEST else b""


def _is_small(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return type(value) is torch.Tensor and value.nbytes <= LARGEST
    if isinstance(value, (*CONTAINERS, str, bytes)):
        return len(value) <= LONGEST
    return isinstance(value, ATOMS) or type(value).__module__ == "numpy"


def _counts(value: Any) -> bool:
    return isinstance(value, (DataLoader, Sampler)) or fabric.is_loader(value)


def _atoms(value: Any) -> dict[str, Any]:
    # some of DataLoader's own can be set only once
    return {
        k: v
        for k, v in vars(value).items()
        if type(v) in ATOMS and not k.startswith("_DataLoader__")
    }


def _around(loader: Any) -> Iterator[tuple[str, Any]]:
    """The loader and the objects reachable through its attributes and their containers, each once,
    with the way to it."""
    seen: set[int] = set()
    todo = [(ROOT, loader, 0)]
    while todo and len(seen) < OBJECTS:
        path, value, depth = todo.pop(0)
        if id(value) in seen:
            continue
        seen.add(id(value))
        yield path, value
        if depth < DEPTH and not isinstance(value, torch.Tensor):
            for name, inside in list(stored(value).items()):
                todo += [(f"{path}.{name}{key}", v, depth + 1) for key, v in _inside(inside)]


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    """An object that is to be looked at, or those in a short container."""
    if is_generator(value) or _is_object(value):
        yield "", value
    elif type(value) in (list, tuple) and len(value) <= ITEMS:
        for i, item in enumerate(value):
            if is_generator(item) or _is_object(item):
                yield f"[{i}]", item
    elif type(value) is dict and len(value) <= ITEMS:
        for key, item in value.items():
            if type(key) in ATOMS and (is_generator(item) or _is_object(item)):
                yield f"[{key!r}]", item


def _is_object(value: Any) -> bool:
    return (
        hasattr(value, "__dict__")
        and not isinstance(value, (*CODE, torch.nn.Module, torch.optim.Optimizer))
        and type(value).__module__ != "builtins"
    )

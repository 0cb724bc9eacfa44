"""What a loader keeps from pass to pass, which a replacement lacks because it has not iterated the
earlier passes: counters of torch's loaders and samplers, and what the pass has changed in the
attributes of the script's own samplers, data sets and collators.

Such an attribute is recorded once it differs from what it was when the loader was first seen: a
replacement's set-up has made the rest again. A flag without what it describes is worse than
neither: nothing is recorded of an object that holds a thread or a file, or in which, or below
which, a change shows that is no plain value (a cache of objects). What worker processes change
stays in their copies. Then the batches tell, which are compared.
"""

from __future__ import annotations

import functools
import random
import sys
import types
import weakref
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Sampler

from taskd import raised
from taskd.worker.state import fabric, loading, plain
from taskd.worker.state.stored_attributes import into, put_attribute, stored

DEPTH, OBJECTS = 5, 200  # how far around a loader to search
# bytes of an attribute, and of all together, which are in each record; a larger one is data
LARGEST = 1 << 18
ITEMS = 1 << 16  # of a container
NESTED = 3  # containers in each other
_NONE = object()
ROOT = ""  # the way to the loader itself
ATOMS = (bool, int, float, str, type(None))
CONTAINERS = (list, tuple, dict, set)
CODE = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType)
APART = (*CODE, torch.Tensor, torch.nn.Module, torch.optim.Optimizer)  # recorded by others, or code
# whose objects are no values: what an object that holds one says of itself holds in this process
LIVE = {
    *("_io", "_queue", "_thread", "asyncio", "concurrent", "ctypes", "io", "mmap", "queue"),
    *("multiprocessing", "select", "socket", "sqlite3", "ssl", "subprocess", "tempfile"),
    "threading",
}

Values = dict[str, bytes]  # attributes by name, each encoded


def generators(loader: Any) -> list[Any]:
    """The generators that a loader, its samplers and its data set hold, in an order that depends
    only on names."""
    return [value for _, value in _around(loader) if is_generator(value)]


def is_generator(value: Any) -> bool:
    """Whether `value` is a generator, other than the process-wide ones, which every record has."""
    kind = type(value)
    if issubclass(kind, torch.Generator):
        return value is not torch.default_generator
    if issubclass(kind, random.Random):
        return value is not random._inst and not issubclass(kind, random.SystemRandom)
    numpy = sys.modules.get("numpy")
    if numpy is None or "numpy.random" not in sys.modules:
        return False
    if issubclass(kind, numpy.random.RandomState):
        return value is not numpy.random.mtrand._rand
    return issubclass(kind, numpy.random.Generator)


def place(loader: Any) -> bytes:
    """Where a loader is between two passes: the counters of torch's loaders and samplers (`epoch`,
    `iteration`); its own state, but for torch's, which have none (asking for it would begin a
    pass), and for those that begin each pass where they have been moved to; and the attributes that
    have changed."""
    counters = [_atoms(value) for _, value in _around(loader) if _counts(value)]
    apart = isinstance(loader, DataLoader) or loading.sticks(loader)
    own = b"" if apart else loading.state_of(loader)
    looks = _looks(loader, bool(own))
    tainted = [path for path, look in looks.items() if look.tainted]
    held: dict[str, Values] = {}
    left = LARGEST
    for path, look in looks.items():
        if look.changed and not any(t == path or t.startswith(f"{path}.") for t in tainted):
            left -= sum(map(len, look.changed.values()))
            if left >= 0:
                held[path] = look.changed
    return plain.encode([counters, own, held])


def at_end(data: bytes, loader: Any) -> bytes:
    """What `place` returned at the start of the pass, with where the loader is at its end."""
    counters, own, held = plain.decode(data)[:3]
    return plain.encode([counters, own, held, place(loader)])


def moves(data: bytes) -> bool:
    """Whether `put_place` moves the loader by its own state."""
    return bool(data and plain.decode(data)[1])


def put_place(
    loader: Any, data: bytes, without: Collection[int] | None = frozenset(), own: bool = True
) -> None:
    """Restore what `place` returned, but for attributes of, and that are, objects with the ids
    `without`; None: without attributes. `own`: also its own state. Raises RuntimeError if the
    replacement's loader is built differently."""
    state = plain.decode(data)[1]
    _put(loader, data, without)
    if state and own:
        loading.load(loader, state)


def release(loader: Any) -> None:
    """Loaders and data sets that were moved, and stick there, begin their passes from the start."""
    for _, value in _around(loader):
        if loading.sticks(value):
            loading.load(value, plain.encode({}))


def releasing(loader: Any, iterator: Iterator[Any]) -> Iterator[Any]:
    """Its items; `release` once it has begun."""
    sticking = any(loading.sticks(value) for _, value in _around(loader))
    return _released(loader, iterator) if sticking else iterator


def _released(loader: Any, iterator: Iterator[Any]) -> Iterator[Any]:
    first = next(iterator, _NONE)
    release(loader)
    if first is not _NONE:
        yield first
        yield from loading.rest(iterator)


def start_workers(loader: Any, data: bytes) -> bool:
    """Begin torch's loaders that have persistent workers and had begun by then: the first pass that
    they give draws a seed for the workers, and later ones do not. Whether any has begun."""
    here = [value for _, value in _around(loader) if _counts(value)]
    begun = [
        value
        for value, atoms in zip(here, plain.decode(data)[0], strict=True)
        # a loader that has not begun has None there
        if getattr(value, "persistent_workers", False)
        and value._iterator is None
        and "_iterator" not in atoms
    ]
    for value in begun:
        iter(value)
    return bool(begun)


def put_end(loader: Any, data: bytes, without: Collection[int] | None = frozenset()) -> None:
    """The loader is at the end of the pass: restore its place there, of what `at_end` returned."""
    if end := plain.decode(data)[3:]:
        _put(loader, end[0], without)


def attributes_around(loader: Any) -> set[int]:
    """The ids of what it and the objects that it reads have as attributes, and of these."""
    around = [stored(value) for _, value in _around(loader, called=True)]
    return {id(held) for of in around for held in (of, *of.values())}


def shares(loader: Any, objects: Collection[int]) -> bool:
    """Whether it reads one of these, which are given by their ids, or a module."""
    for _, value in _around(loader, called=True):
        for one in (value, *list(stored(value).values())):
            if any(id(v) in objects or issubclass(type(v), torch.nn.Module) for v in _read_by(one)):
                return True
    return False


def _read_by(value: Any) -> list[Any]:
    """What it is, and what a function reads."""
    found = [value]
    while issubclass(type(value), functools.partial):
        found += [*value.args, *value.keywords.values(), value.func]
        value = value.func
    if type(value) is types.MethodType:
        found += [value.__self__, *stored(value.__self__).values()]
        value = value.__func__
    if type(value) is types.FunctionType:
        for cell in value.__closure__ or ():
            try:
                found.append(cell.cell_contents)
            except ValueError:  # not assigned yet
                continue
    return found


def _put(loader: Any, data: bytes, without: Collection[int] | None) -> None:
    here = [value for _, value in _around(loader) if _counts(value)]
    kept, own, held = plain.decode(data)[:3]
    if not isinstance(kept, list) or len(kept) != len(here):
        raise RuntimeError(
            f"the loader {type(loader).__name__} is built differently from that of the rank's"
            " previous process"
        )
    if without is not None:
        for path, look in _looks(loader, bool(own)).items():
            if id(look.value) not in without:
                look.put(held.get(path, {}), without)
    for value, atoms in zip(here, kept, strict=True):
        present = _atoms(value)
        for name, atom in atoms.items():
            if name not in present or present[name] != atom:
                object.__setattr__(value, name, atom)


# -- the attributes of the script's own objects ----------------------------------------------------


class _Look:
    """The attributes of an object: the plain ones, and which the others are."""

    def __init__(self, value: Any) -> None:
        self.value, self.plain = value, Values()
        others: dict[str, int] = {}
        live = False
        for name, attribute in list(stored(value).items()):
            if data := _encoded(attribute):
                self.plain[name] = data
            elif not is_generator(attribute):
                others[name] = id(attribute)
                live = live or is_live(attribute)
        known = _first.get(id(value))
        if known is None or known[0]() is not value:
            known = weakref.ref(value), self.plain, others
            _first[id(value)] = known
        self.first = known[1]
        self.tainted = live or known[2] != others
        changed = {n: data for n, data in self.plain.items() if self.first.get(n) != data}
        self.changed = {} if self.tainted else changed

    def put(self, values: Values, without: Collection[int]) -> None:
        """Restore what was changed. A first try to begin the loader may have changed others, and
        made some."""
        for name in () if self.tainted else self.plain.keys() - self.first.keys() - values.keys():
            del stored(self.value)[name]
        for name, data in (values if self.tainted else {**self.first, **values}).items():
            present = stored(self.value).get(name)
            if self.plain.get(name) != data and id(present) not in without:
                put_attribute(self.value, name, into(present, plain.decode(data)))


# id of an object -> the object, and its attributes when it was first seen
_first: dict[int, tuple[weakref.ref[Any], Values, dict[str, int]]] = {}


def _looks(loader: Any, stateful: bool) -> dict[str, _Look]:
    """By the way to the object. `stateful`: the loader records itself."""
    for gone in [number for number, (there, *_) in _first.items() if there() is None]:
        del _first[gone]
    around = dict(_around(loader, called=True))
    if stateful:
        around.pop(ROOT, None)
    return {path: _Look(value) for path, value in around.items() if _is_own(type(value))}


def _is_own(kind: type) -> bool:
    """Whether it is a class of the script, or of a library for data."""
    first = str(kind.__module__).partition(".")[0]
    known = first in ("torch", "taskd", "numpy") or first in sys.stdlib_module_names
    return (not known or first == "__main__") and kind.__weakrefoffset__ != 0


def is_live(value: Any) -> bool:
    return str(type(value).__module__).partition(".")[0] in LIVE


def _encoded(value: Any) -> bytes:
    """A plain value that is not too large; b"" for others."""
    try:
        data = plain.encode(value) if _is_plain(value) else b""
    except Exception as error:  # another thread of the script changes it
        raised.heed(error)
        return b""
    return data if len(data) <= LARGEST else b""


def _is_plain(value: Any) -> bool:
    kind = type(value)
    if kind is torch.Tensor:
        known = value.device.type == "cpu" and not value.requires_grad and plain.is_dense(value)
        return known and value.nbytes <= LARGEST
    numpy = sys.modules.get("numpy")
    if numpy is not None and (kind is numpy.ndarray or issubclass(kind, numpy.generic)):
        return value.dtype.kind in "biuf" and value.nbytes <= LARGEST
    return _items(value, 0) <= ITEMS


def _items(value: Any, depth: int) -> int:
    """How many values there are in a container of plain ones; more than ITEMS for others."""
    kind = type(value)
    if kind in (str, bytes):
        return 1 + len(value) // 8
    numpy = sys.modules.get("numpy")
    number = numpy is not None and issubclass(kind, numpy.generic) and value.dtype.kind in "biuf"
    if kind in ATOMS or number:
        return 1
    if kind not in CONTAINERS or depth == NESTED or len(value) > ITEMS:
        return ITEMS + 1
    found = 1
    for item in (*value.keys(), *value.values()) if kind is dict else tuple(value):
        found += _items(item, depth + 1)
        if found > ITEMS:
            break
    return found


def _counts(value: Any) -> bool:
    return issubclass(type(value), (DataLoader, Sampler)) or fabric.is_loader(value)


def _atoms(value: Any) -> dict[str, Any]:
    # some of DataLoader's own can be set only once
    return {
        k: v
        for k, v in vars(value).items()
        if type(v) in ATOMS and not k.startswith("_DataLoader__")
    }


def _around(loader: Any, called: bool = False) -> Iterator[tuple[str, Any]]:
    """The loader and the objects reachable through its attributes, each once, with the way to it.
    `called`: also objects that can be called, such as collators."""
    seen: set[int] = set()
    todo = [(ROOT, loader, 0)]
    while todo and len(seen) < OBJECTS:
        path, value, depth = todo.pop(0)
        if id(value) in seen:
            continue
        seen.add(id(value))
        yield path, value
        if depth < DEPTH and not issubclass(type(value), APART):
            todo += [
                (f"{path}.{name}", v, depth + 1)
                for name, v in list(stored(value).items())
                if is_generator(v) or _is_object(v, called)
            ]


def _is_object(value: Any, called: bool) -> bool:
    kind = type(value)
    return (
        kind.__dictoffset__ != 0
        and kind.__module__ != "builtins"
        and (not callable(value) or (called and not issubclass(kind, APART)))
    )

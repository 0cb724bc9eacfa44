"""What a script's objects have at one moment, so that a change that no record has can be named.

A search of the same objects after the next step finds what that step has changed. Looked into are
containers, modules, objects of the script's own classes, and those of libraries for their arrays
and lists of numbers.
"""

from __future__ import annotations

import functools
import itertools
import operator
import sys
import types
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from typing import Any, NamedTuple

import torch

from taskd import raised
from taskd.worker.discovery.held import is_source
from taskd.worker.discovery.project import is_own
from taskd.worker.discovery.reach import ITEMS, Root
from taskd.worker.state import places
from taskd.worker.state.looks import is_plain
from taskd.worker.state.stored_attributes import attributes, stored

MOST = 20_000  # values
SAMPLE = 16  # of the numbers of an array
_SEQUENCES = (list, tuple, deque)
_NUMBERS = (bool, int, float, complex, str, bytes, type(None), torch.Size, torch.dtype)
# libraries whose objects are recorded in other ways, or hold no numbers of a step
_KNOWN = {
    *("torch", "numpy", "taskd", "transformers", "lightning", "pytorch_lightning"),
    *("lightning_fabric", "accelerate", "matplotlib", *sys.stdlib_module_names),
}
_BASE = frozenset(torch.nn.Module().__dict__)


class Holder(NamedTuple):
    """`path`: the script's name of it; `rows`: by step of the path, what shows a change."""

    path: str
    kind: type
    rows: dict[str, str]


def look(roots: Iterable[Root], known: Collection[int]) -> dict[int, Holder]:
    """By id, all that holds something. `known`: ids of what is not looked into."""
    found: dict[int, Holder] = {}
    seen, left = {*known}, MOST
    todo = deque((path, value, False) for path, value in roots)
    while todo and left > 0:
        path, value, foreign = todo.popleft()
        foreign = foreign or _is_of_library(value)
        if id(value) in seen or not (foreign or _is_entered(value)):
            continue
        seen.add(id(value))
        rows: dict[str, str] = {}
        for step, inner in _inside(value):
            left -= 1
            # a library counts and notes much that changes no number
            if (not foreign or _is_numbers(inner)) and (token := _token(inner)):
                rows[step] = token
            if type(inner) not in _NUMBERS and (not foreign or _is_within(inner)):
                todo.append((path + step, inner, foreign))
        # an object's attributes have the id of their dict, as spaces of attributes do
        within = stored(value) if not issubclass(type(value), dict) and stored(value) else value
        found[id(within)] = Holder(path, type(value), rows)
    return found


def changed(before: dict[int, Holder], now: dict[int, Holder]) -> dict[int, set[str]]:
    """By id of what holds them, the steps to what is not as it was."""
    found = {}
    for identity, holder in now.items():
        was = before.get(identity)
        if was is not None and was[:2] == holder[:2]:
            keys = was.rows.keys() | holder.rows.keys()
            differing = {key for key in keys if was.rows.get(key) != holder.rows.get(key)}
            if differing:
                found[identity] = differing
    return found


def _is_entered(value: Any) -> bool:
    kind = type(value)
    if issubclass(kind, torch.nn.Module):
        return True
    if issubclass(kind, (*_SEQUENCES, set)):
        return len(value) <= ITEMS
    if issubclass(kind, dict):
        return dict.__len__(value) <= ITEMS or "__name__" in value
    if kind in (types.FunctionType, types.CellType, functools.partial):
        return True
    return _is_object(value) and not places.is_generator(value)


def _is_of_library(value: Any) -> bool:
    """Whether it is an object of a library, of which nothing is known: an environment, an
    accountant. One that holds a thread or a file is none."""
    kind = type(value)
    return (
        not issubclass(kind, (*places.APART, types.ModuleType))
        and str(kind.__module__).partition(".")[0] not in _KNOWN
        and not is_own(str(kind.__module__), sys.modules.get(kind.__module__))
        and not is_source(kind)
        and not places.is_generator(value)
        and not any(places.is_live(inner) for _, inner in attributes(value))
    )


def _is_within(value: Any) -> bool:
    return type(value) in (list, tuple, dict, deque) or _is_of_library(value)


def _is_numbers(value: Any) -> bool:
    kind = type(value)
    if kind in (list, tuple):
        return len(value) <= ITEMS and all(type(v) in (int, float) for v in value)
    return kind.__module__ == "numpy"


def _is_object(value: Any) -> bool:
    """Whether it is one of the script's, and gives no data."""
    kind = type(value)
    return (
        not issubclass(kind, (*places.APART, types.ModuleType))
        and is_own(str(kind.__module__), sys.modules.get(kind.__module__))
        and not is_source(kind)
    )


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    kind = type(value)
    if issubclass(kind, torch.nn.Module):
        yield from ((f".{name}", part) for name, part in value._modules.items())
        if not kind.__module__.startswith("torch."):
            yield from ((f".{k}", v) for k, v in list(stored(value).items()) if k not in _BASE)
    elif issubclass(kind, dict):
        named = "__name__" in value
        for key, inner in list(dict.items(value)):
            if isinstance(key, str) and not key.startswith("__") and named:
                yield f".{key}", inner
            elif not named and _is_key(key):
                yield f"[{key!r}]", inner
    elif issubclass(kind, _SEQUENCES):
        yield from ((f"[{number}]", inner) for number, inner in enumerate(list(value)))
    elif issubclass(kind, set):
        yield "{}", repr(sorted(repr(v) for v in value if type(v) in _NUMBERS))
    elif kind is types.FunctionType:
        if is_own(value.__module__ or "", sys.modules.get(value.__module__ or "")):
            yield from ((f".{name}", inner) for name, inner in list(stored(value).items()))
            names = value.__code__.co_freevars
            yield from zip((f".{name}" for name in names), value.__closure__ or (), strict=False)
    elif kind is types.CellType:
        try:
            yield ".", value.cell_contents
        except ValueError:  # not assigned yet
            return
    elif kind is functools.partial:
        yield from ((f".{name}", inner) for name, inner in value.keywords.items())
        yield from ((f".<argument {i}>", inner) for i, inner in enumerate(value.args))
    else:
        yield from ((f".{name}", inner) for name, inner in attributes(value))


def _is_state(value: Any, depth: int) -> bool:
    """Whether a container has nothing but numbers, text, and tensors without a graph."""
    kind = type(value)
    if kind in _NUMBERS:
        return True
    if kind is torch.Tensor:
        return not value.requires_grad
    if kind not in (list, tuple, dict) or depth > 4 or len(value) > ITEMS:
        return False
    return all(_is_state(v, depth + 1) for v in (value.values() if kind is dict else value))


def sample(array: Any) -> str:
    """Some numbers of a NumPy array, or of a tensor; "" if it cannot be read."""
    try:
        if isinstance(array, torch.Tensor) and not _is_there(array):
            return ""
        flat = array.reshape(-1)
        return repr(flat[:: max(1, len(flat) // SAMPLE)].tolist())
    except Exception as error:  # of a type that has no numbers
        raised.heed(error)
        return ""


def _is_there(tensor: torch.Tensor) -> bool:
    """Whether its memory is: FSDP frees that of a tensor that it needs later."""
    if tensor.layout is not torch.strided or tensor.device.type == "meta":
        return False
    bytes_ = (tensor.storage_offset() + tensor.numel()) * tensor.element_size()
    return tensor.is_contiguous() and tensor.untyped_storage().nbytes() >= bytes_


def _is_key(key: Any) -> bool:
    parts = key if type(key) is tuple else (key,)
    return all(type(part) in _NUMBERS for part in parts)


def _token(value: Any) -> str:
    """A text that changes if the value does; "" for what is looked into or cannot be compared."""
    kind = type(value)
    if kind in (str, bytes):
        return f"{len(value)} {hash(value)}"
    if kind in _NUMBERS:
        return str(hash(value)) if kind is int else repr(value)
    if kind is itertools.count:
        return repr(value)
    numpy = sys.modules.get("numpy")
    if numpy is not None and issubclass(kind, (numpy.ndarray, numpy.generic)):
        return repr(value.shape) if value.dtype.hasobject else sample(value)
    if kind.__module__ == "builtins" and kind.__name__.endswith("iterator"):
        return repr(operator.length_hint(value, -1))
    if kind is tuple and _is_numbers(value):
        return repr(value)
    if kind in (list, tuple, dict) and value and _is_state(value, 0):
        return f"container {id(value)}"
    if _is_object(value):
        rows = dict(attributes(value))
        if rows and all(map(is_plain, rows.values())):
            # one that is exchanged for another in a step, such as a frozen dataclass
            return f"object {id(value)}"
    return ""

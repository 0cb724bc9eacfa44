"""Counters in what holds the protected objects: Accelerate's `Accelerator.step`, whether its
GradientState synchronizes, the counters of a library's trainer.

Such an object has no state_dict(), and its numbers decide what the next step does. Numbers and
flags in its attributes are recorded, and those of the objects of the same library that it has in
its attributes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from taskd.worker import reach
from taskd.worker.reach import Root
from taskd.worker.wrappers import KNOWN

_NUMBERS = (bool, int, float, type(None))
MOST = 500  # numbers; ~0.3 us each

# name, how it is read, how it is written
Counter = tuple[str, Callable[[], Any], Callable[[Any], None]]


def counters(protected: Iterable[Any], roots: list[Root]) -> list[Counter]:
    """The numbers of what holds one of `protected` (modules and optimizers), found by the names of
    `roots`."""
    known = {id(value) for value in protected}
    own = {value["__name__"] for _, value in roots if isinstance(value.get("__name__"), str)}
    found: dict[int, Root] = {}
    for name, holder in reach.find(roots, lambda kind: _may_hold(kind, own)):
        if any(id(value) in known or _wraps(value, known) for value in _held(holder)):
            found.setdefault(id(holder), (name, holder))
            for inner, value in _attributes(holder).items():
                if _library(type(value)) == _library(type(holder)) and _may_hold(type(value), own):
                    found.setdefault(id(value), (f"{name}.{inner}", value))
    return [row for name, holder in found.values() for row in _numbers(name, holder)][:MOST]


def _may_hold(kind: type, own: set[str]) -> bool:
    """Whether it is a library's object without a state that is recorded in another way."""
    library = _library(kind)
    return (
        kind.__module__ not in own
        and library not in sys.stdlib_module_names
        and library not in ("torch", "numpy", "taskd")
        and not issubclass(
            kind,
            (torch.nn.Module, torch.utils.data.DataLoader, LRScheduler, torch.Tensor, type),
        )
    )


def _library(kind: type) -> str:
    return str(kind.__module__).partition(".")[0]


def _attributes(holder: Any) -> dict[str, Any]:
    try:
        found = object.__getattribute__(holder, "__dict__")
    except AttributeError:
        return {}
    return found if type(found) is dict else {}


def _held(holder: Any) -> Iterator[Any]:
    for value in list(_attributes(holder).values()):
        if type(value) in (list, tuple) and len(value) <= reach.ITEMS:
            yield from value
        else:
            yield value


def _wraps(value: Any, known: set[int]) -> bool:
    """Whether it is a wrapper (wrappers.py, DDP) of one of `known`."""
    kind = type(value)
    inside = KNOWN.get((kind.__module__, kind.__name__), "module")
    return id(_attributes(value).get(inside)) in known or (
        isinstance(value, torch.nn.Module) and id(getattr(value, "module", None)) in known
    )


def _numbers(name: str, holder: Any) -> Iterator[Counter]:
    attributes = _attributes(holder)
    for key, value in list(attributes.items()):
        if type(value) in _NUMBERS and isinstance(key, str):
            yield (
                f"{name}.{key}",
                partial(attributes.get, key),
                partial(attributes.__setitem__, key),
            )

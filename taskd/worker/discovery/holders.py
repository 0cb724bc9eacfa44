"""Numbers in objects that hold the protected ones: Accelerate's `Accelerator.step`, whether its
GradientState synchronizes, the counters of a library's trainer.

Such an object has no state_dict(), and its numbers decide what the next step does. So the numbers
and flags among its attributes are recorded once they have changed, also in objects of the same
library that it refers to. A number that never changes (a descriptor, a process id) stays as it is
in each process.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from taskd.worker.discovery import reach
from taskd.worker.discovery.project import is_own
from taskd.worker.discovery.reach import Root
from taskd.worker.state.stored_attributes import stored
from taskd.worker.state.wrappers import KNOWN

log = logging.getLogger("taskd.worker")

NAME = "(numbers of libraries)"  # among the small objects

_NUMBERS = (bool, int, float, type(None))


class Numbers:
    """Records and restores them, by state_dict() and load_state_dict()."""

    def __init__(self) -> None:
        # name of an object -> its attributes, and their values in the beginning
        self._holders: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}

    def search(self, protected: Iterable[Any], libraries: list[Root]) -> None:
        """Find which of `libraries` hold one of `protected` (modules and optimizers)."""
        for name, holder in find(protected, libraries):
            attributes = stored(holder)
            start = {k: v for k, v in attributes.items() if type(v) in _NUMBERS}
            if start:
                self._holders[name] = attributes, start
                log.info("also protected: numbers of %s (%s)", name, type(holder).__name__)

    def __bool__(self) -> bool:
        return bool(self._holders)

    def state_dict(self) -> dict[str, Any]:
        found: dict[str, dict[str, Any]] = {}
        for name, (attributes, start) in self._holders.items():
            for key, was in start.items():
                now = attributes.get(key)
                if now is not was and type(now) in _NUMBERS and now != was:
                    found.setdefault(name, {})[key] = now
        return found

    def load_state_dict(self, values: dict[str, Any]) -> None:
        for name, (attributes, start) in self._holders.items():
            # attributes that had not changed by then are as in the beginning
            for key, value in (start | values.get(name, {})).items():
                if type(attributes.get(key)) in _NUMBERS and attributes[key] != value:
                    attributes[key] = value


def find(protected: Iterable[Any], libraries: list[Root]) -> list[Root]:
    """(name, object) of each holder of one of `protected`, and of its library's objects inside."""
    known = {id(value) for value in protected}
    found: dict[int, Root] = {}
    for name, holder in libraries:
        if any(id(value) in known or _wraps(value, known) for value in _held(holder)):
            found.setdefault(id(stored(holder)), (name, holder))
            for inner, value in stored(holder).items():
                if _library(type(value)) == _library(type(holder)) and may_hold(type(value)):
                    # several objects may share their attributes
                    found.setdefault(id(stored(value)), (f"{name}.{inner}", value))
    return list(found.values())


def may_hold(kind: type) -> bool:
    """Whether it is a library's object without a state that is recorded in another way."""
    library = _library(kind)
    return (
        not is_own(kind.__module__, sys.modules.get(kind.__module__))
        and library not in sys.stdlib_module_names
        and library not in ("torch", "numpy", "taskd")
        and not issubclass(
            kind,
            (torch.nn.Module, torch.utils.data.DataLoader, LRScheduler, torch.Tensor, type),
        )
    )


def _library(kind: type) -> str:
    return str(kind.__module__).partition(".")[0]


def _held(holder: Any) -> Iterator[Any]:
    for value in list(stored(holder).values()):
        if type(value) in (list, tuple) and len(value) <= reach.ITEMS:
            yield from value
        else:
            yield value


def _wraps(value: Any, known: set[int]) -> bool:
    """Whether it is a wrapper (state/wrappers.py, DDP) of one of `known`."""
    kind = type(value)
    inside = KNOWN.get((kind.__module__, kind.__name__), "module")
    return id(stored(value).get(inside)) in known or (
        isinstance(value, torch.nn.Module) and id(getattr(value, "module", None)) in known
    )

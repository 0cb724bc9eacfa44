"""What of a process is the script: modules, objects and frames."""

from __future__ import annotations

import inspect
import os
import sys
import types
from collections import deque
from pathlib import Path
from typing import Any

import torch

from taskd.worker.discovery import frames
from taskd.worker.discovery.project import is_own
from taskd.worker.discovery.values import ITEMS, SCALARS
from taskd.worker.state.stored_attributes import MISSING, stored

CONSTANT = (
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    type,
    torch.nn.Module,
    torch.optim.Optimizer,
)
ASKED = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR | inspect.CO_COROUTINE
_LIBRARIES = {"torch", "numpy", "taskd", *sys.stdlib_module_names} - {"__main__"}
_PLAIN = {*SCALARS, str}
_PACKAGE = str(Path(__file__).parents[2]) + os.sep


class Own:
    """Decides which modules and objects are the script's own."""

    def __init__(self) -> None:
        self._known: dict[str, bool] = {}

    def module(self, name: str) -> bool:
        if name not in self._known:
            self._known[name] = is_own(name, sys.modules.get(name))
        return self._known[name]

    def space(self, space: dict[str, Any]) -> bool:
        name = space.get("__name__")
        return isinstance(name, str) and self.module(name)

    def object(self, value: Any) -> bool:
        kind = type(value)
        return not issubclass(kind, CONSTANT) and (
            self.module(kind.__module__) or self.meter(value)
        )

    @staticmethod
    def meter(value: Any) -> bool:
        """Whether it is an object of a library that has nothing but numbers and text, such as a
        meter: its methods are read as the script's own are."""
        held = stored(value)
        return (
            0 < len(held) <= ITEMS
            and all(type(v) in _PLAIN for v in held.values())
            and type(value).__module__.partition(".")[0] not in _LIBRARIES
        )


def frames_of(own: Own) -> list[tuple[types.FrameType, bool]]:
    """The script's, innermost first, and whether a `for` in it may have asked for its next pass: it
    waits for a generator, or for __next__()."""
    found = []
    asks = False
    for frame in frames.stack():
        code = frame.f_code
        # a forked rank's frames begin with those of the zygote, whose module was a __main__ too
        if own.space(frame.f_globals) and not code.co_filename.startswith(_PACKAGE):
            found.append((frame, asks))
        asks = bool(code.co_flags & ASKED) or code.co_name == "__next__"
    return found


def is_constant(value: Any) -> bool:
    """Whether it does not change, or is taskd's own: a job, its attempts, the iterators of
    job.iterate()."""
    if value is MISSING or isinstance(value, CONSTANT):
        return True
    if isinstance(value, types.GeneratorType):
        frame = value.gi_frame
        return frame is not None and str(frame.f_globals.get("__name__")).startswith("taskd.")
    return type(value).__module__.startswith("taskd.worker.")


def is_shared(value: Any) -> bool:
    """Whether it is a SharedMemory, or a Value or Array of multiprocessing."""
    return type(value).__module__ in (
        "multiprocessing.shared_memory",
        "multiprocessing.sharedctypes",
    )


def is_container(kind: type) -> bool:
    return issubclass(kind, (list, tuple, dict, set, deque))


def is_drawn(value: Any) -> bool:
    """Whether next() takes something out of it."""
    if not hasattr(type(value), "__next__"):
        return False
    readable = getattr(type(value), "readable", None)  # a file that is written is no source
    return readable is None or bool(value.readable())

"""Notices collectives between two steps of what the ranks have computed by themselves (the losses
of an epoch, a validation), which lack the ranks that are away.

Looks only where elastic-training is a strategy, or ranks are away already. Collectives that torch's
modules make (FSDP2's) are theirs to make; those of DDP never come by Python.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from taskd.worker.communication import methods
from taskd.worker.state.training_state import TrainingState

LEVEL = 3  # of communication/methods.py: nearest to the script
CALLS = (*methods.FILLING, "barrier", "monitored_barrier")  # methods of ProcessGroup
# those that give what all ranks have, whoever makes them
ALIKE = ("barrier", "monitored_barrier", "broadcast", "recv", "recv_anysource")
# torch's own functions between the caller and the group
BETWEEN = (
    "torch.distributed.distributed_c10d",
    "torch.distributed.c10d_logger",
    "torch.distributed._functional_collectives",
    "torch.distributed.nn.functional",
    "torch.autograd.function",
    "torch.utils._contextlib",
)


class Watch:
    """`found`: called with what was found, inside the script's own call: it may raise."""

    def __init__(self, state: TrainingState, found: Callable[[str], None]) -> None:
        self._state, self._found = state, found
        self._layer = methods.Layer(LEVEL)
        self.installed = False
        self._inside = self.begun = False  # in an attempt; one has been begun
        self._spans: dict[Any, bool] = {}  # group -> whether it has several replicas

    def install(self) -> None:
        """A pass begins. Idempotent."""
        if not self.installed:
            self.installed = True
            for name in CALLS:
                self._layer.put(dist.ProcessGroup, name, partial(self._wrapped, name))
            for name, function in vars(functional).copy().items():
                if (at := _place_of_group(name, function)) >= 0:
                    self._layer.put(functional, name, partial(self._functional, name, at))

    def remove(self) -> None:
        self.over()
        self._layer.remove()
        self.installed = False

    # -- an attempt --------------------------------------------------------------------------------

    def begin(self) -> None:
        """An attempt begins."""
        self._inside, self.begun = self.installed, True

    def over(self) -> None:
        """The attempt has ended."""
        self._inside = False

    # -- collectives -------------------------------------------------------------------------------

    def _wrapped(self, name: str, original: Any) -> Any:
        def method(handle: Any, *args: Any, **more: Any) -> Any:
            if self._looks and _is_script(sys._getframe(1)) and self._spanning(handle):
                self._called(name)
            return original(handle, *args, **more)

        return method

    def _functional(self, name: str, at: int, original: Any) -> Any:
        """A functional collective, whose group is argument `at`: it never comes to the methods."""

        def function(*args: Any, **more: Any) -> Any:
            if (
                self._looks
                and not torch.compiler.is_compiling()
                and _is_script(sys._getframe(1))
                and self._spanning(_group([*args, more.get("group")][min(at, len(args))]))
            ):
                self._called(name)
            return original(*args, **more)

        return function

    @property
    def _looks(self) -> bool:
        return self.begun and not self._inside

    def _called(self, name: str) -> None:
        if name not in ALIKE:
            self._found(
                f"the script calls {name} of torch.distributed itself between two steps, where"
                " nobody stands in for ranks that are away (the losses of an epoch, a validation):"
                " do it inside an attempt"
            )

    def _spanning(self, handle: Any) -> bool:
        """Whether the group has several ranks with the same parameters."""
        found = self._spans.get(handle)
        if found is None:
            members = self._state.replicas.members
            ranks = dist.get_process_group_ranks(handle)
            found = len(ranks if members is None else set(ranks) & set(members)) > 1
            self._spans[handle] = found
        return found


def _place_of_group(name: str, value: Any) -> int:
    """Where a functional collective has its group among its arguments; -1: it is none."""
    if name[0] == "_" or not inspect.isfunction(value) or value.__module__ != functional.__name__:
        return -1
    names = inspect.signature(value).parameters
    needed = "group" in names and names["group"].default is inspect.Parameter.empty
    return list(names).index("group") if needed else -1


def _group(given: Any) -> Any:
    """The group of a functional collective."""
    if isinstance(given, dist.ProcessGroup):
        return given
    name = functional._resolve_group_name(given)
    return dist.distributed_c10d._resolve_process_group(name)


def _is_script(frame: Any) -> bool:
    """Whether a call of a group's method comes from outside torch and taskd."""
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name not in BETWEEN:
            return name.partition(".")[0] not in ("torch", "taskd")
        frame = frame.f_back
    return False

"""Finds ranges in torch by wrapping public functions, and one private class, while they are wanted.
Off, nothing of it is left.

A rank's wait for others in a step is the time in collectives that it calls itself, plus, in DDP's
backward, the time from its own last gradient to the end, in which DDP's sums arrive.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch.distributed import distributed_c10d

from taskd.messages.to_rank import RANGES
from taskd.profiling.last_gradient import LastGradient
from taskd.profiling.recording import Recorder

STEP, LOADER, FORWARD, SAVE, COMMUNICATION = RANGES
COLLECTIVES = (
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
    "send",
)

_now = time.perf_counter_ns


class TorchRanges:
    """`modules`: the roots that are trained; none if the script is not protected. `mark`: begins a
    range of the device's own profiler and returns what ends it."""

    def __init__(
        self,
        recorder: Recorder,
        modules: Iterable[torch.nn.Module],
        mark: Callable[[str], Callable[[], None]] | None,
    ) -> None:
        self._recorder, self._modules, self._mark = recorder, list(modules), mark
        self._undo: list[Callable[[], object]] = []
        self._inside = 0  # collectives that call others count once
        self._began = 0

    def open(self, names: Iterable[str]) -> None:
        wanted = set(names)
        if LOADER in wanted:
            self._wrap(torch.utils.data.dataloader._BaseDataLoaderIter, "__next__", LOADER, "next")
        if SAVE in wanted:
            self._wrap(torch, "save", SAVE, "torch.save")
            self._wrap(checkpoint, "save", SAVE, "checkpoint.save")
        if FORWARD in wanted:
            for module in self._modules:
                self._forward(module)
        if COMMUNICATION in wanted:
            for name in COLLECTIVES:
                for owner in (dist, distributed_c10d):
                    self._wrap(owner, name, COMMUNICATION, name)
        if wanted & {FORWARD, COMMUNICATION}:
            self._backward(FORWARD in wanted, COMMUNICATION in wanted)

    def close(self) -> None:
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()

    # -- ranges ------------------------------------------------------------------------------------

    def _wrap(self, owner: Any, name: str, kind: str, label: str) -> None:
        original = getattr(owner, name, None)
        if original is None:  # a build of torch without it
            return

        @functools.wraps(original)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return original(*args, **kwargs)
            self._inside += 1
            end = self._mark(f"{kind} {label}") if self._mark is not None else None
            begin = _now()
            try:
                return original(*args, **kwargs)
            finally:
                over = _now()
                self._inside -= 1
                self._recorder.add(kind, label, begin, over)
                if kind == COMMUNICATION:
                    self._recorder.wait(begin, over)
                if end is not None:
                    end()

        self._replace(owner, name, timed, original)

    def _replace(self, owner: Any, name: str, new: Any, original: Any) -> None:
        setattr(owner, name, new)

        def undo() -> None:
            if getattr(owner, name) is new:  # else somebody has wrapped it since, and keeps ours
                setattr(owner, name, original)

        self._undo.append(undo)

    def _forward(self, module: torch.nn.Module) -> None:
        name, began = type(module).__name__, []

        def before(*_: Any) -> None:
            began.append(_now())

        def after(*_: Any) -> None:
            if began:
                self._recorder.add(FORWARD, f"forward {name}", began.pop(), _now())

        self._undo.append(module.register_forward_pre_hook(before).remove)
        self._undo.append(module.register_forward_hook(after).remove)

    def _backward(self, shown: bool, waits: bool) -> None:
        original = torch.autograd.backward
        averaged = [
            m for m in self._modules if isinstance(m, torch.nn.parallel.DistributedDataParallel)
        ]
        gradient = LastGradient(averaged if waits else ())
        self._undo.append(gradient.close)

        @functools.wraps(original)
        def timed(*args: Any, **kwargs: Any) -> Any:
            gradient.begin()
            begin = _now()
            try:
                return original(*args, **kwargs)
            finally:
                end = _now()
                if shown:
                    self._recorder.add(FORWARD, "backward", begin, end)
                if gradient.at:
                    self._recorder.add(COMMUNICATION, "gradients", gradient.at, end)
                    self._recorder.wait(gradient.at, end)
                if gradient.complete:
                    gradient.settle()

        self._replace(torch.autograd, "backward", timed, original)

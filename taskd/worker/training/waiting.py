"""How long this rank waits for the others in each step, which tells the slow rank: the others wait
for the one that hardly waits. In DDP the wait is the time from the rank's own last gradient to its
update, in which the others' gradients arrive. Where the host runs ahead of the device, the device's
clock tells it, a step later: the host's would tell when it was queued."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import torch

from taskd.cython_api import slot
from taskd.devices.device import Device
from taskd.profiling.last_gradient import LastGradient


class Waiting:
    """Called in the training thread. `modules`: those whose gradients DDP averages."""

    def __init__(self, modules: Iterable[torch.nn.Module], device: Device) -> None:
        self._gradient = LastGradient(modules)
        self.clock = self._gradient.clock  # 0 as an attempt begins
        self._settled = False
        self._events = _Events(device) if device.runs_late else None

    def updates(self) -> None:
        """An optimizer is about to update: all gradients are there."""
        if not self.clock.at:
            return
        if self._events is None:
            slot.waited(time.perf_counter_ns() - self.clock.at)
        elif self._settled and (waited := self._events.updates()) is not None:
            slot.waited(waited)
        self.clock.at = 0
        if not self._settled:
            self._settled = True
            last = self._gradient.settle()
            if self._events is not None:
                self._events.watch(last)


class _Events:
    """On the device: two pairs, of this step and of the one before."""

    def __init__(self, device: Device) -> None:
        module: Any = torch.get_device_module(device.device)
        self._pairs = [[module.Event(enable_timing=True) for _ in range(2)] for _ in range(2)]
        self._turn = 0
        self._ended = [False, False]

    def watch(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(self._gradient)

    def _gradient(self, parameter: torch.Tensor) -> None:
        self._pairs[self._turn][0].record()

    def updates(self) -> int | None:
        """How long the rank waited in the step before, in ns; None: it is not known."""
        self._pairs[self._turn][1].record()
        self._ended[self._turn] = True
        self._turn = 1 - self._turn
        begin, end = self._pairs[self._turn]
        if not self._ended[self._turn] or not end.query():
            return None
        milliseconds: float = begin.elapsed_time(end)
        return round(1e6 * milliseconds)

"""How long this rank waits for the others in each step, which tells the slow rank: the others wait
for the one that hardly waits. In DDP the wait is the time from the rank's own last gradient to its
update, in which the others' gradients arrive."""

from __future__ import annotations

import time
from collections.abc import Iterable

import torch

from taskd.cython_api import slot
from taskd.profiling.last_gradient import LastGradient


class Waiting:
    """Called in the training thread. `modules`: those whose gradients DDP averages."""

    def __init__(self, modules: Iterable[torch.nn.Module]) -> None:
        self._gradient = LastGradient(modules)
        self.clock = self._gradient.clock  # 0 as an attempt begins
        self._settled = False

    def updates(self) -> None:
        """An optimizer is about to update: all gradients are there."""
        if not self.clock.at:
            return
        slot.waited(time.perf_counter_ns() - self.clock.at)
        self.clock.at = 0
        if not self._settled:
            self._settled = True
            self._gradient.settle()

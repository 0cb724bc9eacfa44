"""How long this rank waits for the others in each step, which tells the slow rank: the others wait
for the one that hardly waits. In DDP the wait is the time from the rank's own last gradient to its
update, in which the others' gradients arrive."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable
from typing import Any

import torch

from taskd.cython_api import slot

LAST = 3  # parameters whose gradients came last in the first backward: one of them is last again


class Waiting:
    """Called in the training thread, but for the hooks. `modules`: those whose gradients DDP
    averages."""

    def __init__(self, modules: Iterable[torch.nn.Module]) -> None:
        self._last = 0  # when the newest gradient of this attempt was there; 0: none yet
        self._when: dict[int, int] = {}  # number of a parameter -> when its gradient was there
        self._hooks: dict[int, Any] = {}
        for module in modules:
            for parameter in filter(lambda p: p.requires_grad, module.parameters()):
                number = len(self._hooks)
                ready = functools.partial(self._ready, number)
                self._hooks[number] = parameter.register_post_accumulate_grad_hook(ready)

    def _ready(self, number: int, _: torch.Tensor) -> None:
        self._last = self._when[number] = time.perf_counter_ns()

    def begin(self) -> None:
        """An attempt begins."""
        self._last = 0

    def updates(self) -> None:
        """An optimizer is about to update: all gradients are there."""
        if not self._last:
            return
        slot.waited(time.perf_counter_ns() - self._last)
        self._last = 0
        if len(self._hooks) > LAST:
            last = sorted(self._when, key=self._when.__getitem__)[-LAST:]
            for number in self._hooks.keys() - set(last):
                self._hooks.pop(number).remove()

"""Gradient scalers in a shrunk job: each share ends where a scaler would step an optimizer.

A scaler skips the update where a gradient is not finite, and marks the optimizers whose gradients
it has unscaled: it would not unscale those of the last share. That holds for scalers that were not
given to protect(), too, so the method of their class is replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from taskd.worker.communication import methods

LEVEL = 4  # of communication/methods.py


class Scalers:
    """`updates`: called before a scaler steps an optimizer: it may raise."""

    def __init__(self, updates: Callable[[], None]) -> None:
        self._updates = updates
        self._layer = methods.Layer(LEVEL)
        self._found: list[Any] = []

    def install(self, given: Iterable[Any]) -> None:
        """`given`: those among them that are scalers are known from the start."""
        self.remove()
        self._found = [value for value in given if isinstance(value, torch.amp.GradScaler)]
        for kind in {torch.amp.GradScaler, *map(type, self._found)}:
            self._layer.put(kind, "step", self._stepping)

    def remove(self) -> None:
        self._layer.remove()
        self._found = []

    def share_over(self) -> None:
        """Forget what they did to each optimizer's gradients in this share."""
        for scaler in self._found:
            scaler._per_optimizer_states.clear()

    def _stepping(self, original: Any) -> Any:
        def step(scaler: Any, optimizer: Any, *args: Any, **more: Any) -> Any:
            if all(scaler is not known for known in self._found):
                self._found.append(scaler)
            self._updates()
            return original(scaler, optimizer, *args, **more)

        return step

"""When the last gradient of a backward was there, by hooks on a model's parameters.

From then on a rank waits: what DDP has left to do is to sum up the others' gradients.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from taskd.cython_api.gradients import Clock

if TYPE_CHECKING:
    import torch

LAST = 3  # parameters whose gradients came last in the first backward: one of them is last again


class LastGradient:
    """`clock`, `at`: by perf_counter_ns, 0 while there is no gradient since `begin`. All parameters
    have hooks until `settle`, and then those that were last."""

    def __init__(self, modules: Iterable[torch.nn.Module]) -> None:
        self.clock = Clock()
        self._when = self.clock.when
        self._hooks: dict[int, Any] = {}
        self._parameters: dict[int, torch.nn.Parameter] = {}
        for module in modules:
            for parameter in filter(lambda p: p.requires_grad, module.parameters()):
                number = len(self._hooks)
                self._parameters[number] = parameter
                ready = self.clock.hook(number)
                self._hooks[number] = parameter.register_post_accumulate_grad_hook(ready)

    @property
    def at(self) -> int:
        return self.clock.at

    def begin(self) -> None:
        self.clock.at = 0

    @property
    def complete(self) -> bool:
        """Whether all parameters have had a gradient."""
        return len(self._when) >= len(self._hooks)

    def settle(self) -> list[torch.nn.Parameter]:
        """Keep the hooks on the parameters whose gradients came last; returns these."""
        if len(self._hooks) > LAST:
            last = sorted(self._when, key=self._when.__getitem__)[-LAST:]
            for number in self._hooks.keys() - set(last):
                self._hooks.pop(number).remove()
        return [self._parameters[number] for number in self._hooks]

    def close(self) -> None:
        for hook in self._hooks.values():
            hook.remove()

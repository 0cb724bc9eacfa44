"""DDP(static_graph=True): records and replays what its reducer learns from the first backwards.

In the first backward it counts how often the hook of each parameter fires (several times under
nested backwards), reduces everything when the backward is over, and learns which parameters no rank
uses. In the second it notes the order in which gradients become ready, and the forward after that
lays the buckets anew. A rank records both, and each repair replays them on a fresh reducer. Only
all ranks together know which parameters no rank uses, so all replay at once, on the real group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

REDUCER = (
    "_set_static_graph",
    "_autograd_hook",
    "_delay_all_reduce",
    "_rebuild_buckets",
    "prepare_for_backward",
)
ENQUEUED = "_static_graph_delay_allreduce_enqueued"


def lacking(ddp: DistributedDataParallel) -> list[str]:
    """What this torch lacks for such a DDP to be made again."""
    missing = [f"Reducer.{name}" for name in REDUCER if not hasattr(ddp.reducer, name)]
    if not hasattr(ddp, ENQUEUED):
        missing.append(f"DistributedDataParallel.{ENQUEUED}")
    return missing


class Firings:
    """Records which parameters' hooks fire in the first two backwards that synchronize, in their
    order.

    What is recorded is [how many there were, *the parameters of the last of them]."""

    def __init__(self, ddp: DistributedDataParallel) -> None:
        self._ddp = ddp
        self._known: list[int] = [0]  # at the start of the attempt
        self._seen: list[int] = [0]
        self._now: list[int] = []  # in a backward that is not over
        self._handles: list[Any] = []
        self.listen()

    @property
    def listening(self) -> bool:
        return bool(self._handles)

    def listen(self) -> None:
        """Start to listen. Idempotent."""
        if self._handles:
            return
        parameters, _ = self._ddp._build_params_for_reducer()
        self._handles = [
            p.register_post_accumulate_grad_hook(self._hook(i)) for i, p in enumerate(parameters)
        ]

    def _hook(self, index: int) -> Callable[[torch.Tensor], None]:
        def ready(_: torch.Tensor) -> None:
            if self._ddp.require_backward_grad_sync:
                if not self._now:
                    torch.autograd.Variable._execution_engine.queue_callback(self._over)
                self._now.append(index)

        return ready

    def _over(self) -> None:
        """A backward is over."""
        if self._seen[0] < 2:
            self._seen = [self._seen[0] + 1, *self._now]
        self._now = []

    def again(self) -> None:
        """Start over for a new attempt: backwards of a failed one do not count."""
        self._seen, self._now = self._known, []

    def completed(self) -> list[int] | None:
        """Return what is new at a commit, otherwise None. Stops listening after the second
        backward."""
        if self._seen == self._known:
            return None
        self._known = self._seen
        if self._known[0] == 2:
            self.stop()
        return list(self._known)

    def put(self, order: list[int] | None) -> None:
        """Continue from `order`, taken from a record."""
        self._known = self._seen = order or [0]
        self._now = []
        if self._known[0] == 2:
            self.stop()
        else:
            self.listen()

    def stop(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []


def replay(
    ddp: DistributedDataParallel,
    parameters: Sequence[torch.nn.Parameter],
    recorded: list[int] | None,
    in_backward: Callable[[Sequence[int]], None],
) -> None:
    """Teach a fresh reducer what its predecessor had learned. Gradients of all parameters in
    `recorded` are zeros. `in_backward(indices)`: fire the reducer's hooks in a backward.
    Collectives on DDP's group."""
    backwards, order = (recorded[0], recorded[1:]) if recorded else (0, [])
    reducer: Any = ddp.reducer
    reducer._set_static_graph()
    ddp.logger._set_static_graph()  # type: ignore[union-attr]
    setattr(ddp, ENQUEUED, backwards > 0)
    if not backwards:
        return
    reducer.prepare_for_backward([])
    for index in order:
        reducer._autograd_hook(index)
    reducer._delay_all_reduce()
    if backwards > 1:
        reducer.prepare_for_backward([])
        in_backward(order)
        reducer._rebuild_buckets()

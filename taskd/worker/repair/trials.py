"""A forward that is run only for its shapes, without side effects."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from taskd.worker.state.random_state import RandomState
from taskd.worker.state.training_state import TrainingState


@contextmanager
def unchanged(state: TrainingState, random: RandomState) -> Iterator[None]:
    """Restore buffers, attributes and random numbers afterwards; inside, DDPs do not
    communicate."""
    modules = [m for root in state.modules.values() for m in root.modules()]
    kept = [
        (m, {k: (b, b.detach().clone()) for k, b in m._buffers.items() if b is not None})
        for m in modules
    ]
    names = [list(m._buffers) for m in modules]
    numbers, others = random.snapshot(), [state.parts[name] for name in ("attributes", "synced")]
    before = [part.take(0) for part in others]
    try:
        with ExitStack() as stack:
            for ddp in state.ddps:
                stack.enter_context(ddp.no_sync())
            yield
    finally:
        with torch.no_grad():
            for (module, buffers), present in zip(kept, names, strict=True):
                module._buffers = {
                    k: buffers[k][0].copy_(buffers[k][1]) if k in buffers else None for k in present
                }
        for part, content in zip(others, before, strict=True):
            part.put(content)
        random.restore(numbers)

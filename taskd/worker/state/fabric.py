"""The loader that `Fabric.setup_dataloaders` returns: it sets the sampler's epoch, by a counter of
its own, and moves batches to the device. See wrappers.py for Fabric's modules and optimizers.

This file and wrappers.py alone use names of Fabric that are not public.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

KINDS = (
    ("lightning.fabric.wrappers", "_FabricDataLoader"),
    ("lightning_fabric.wrappers", "_FabricDataLoader"),
)


def is_loader(value: Any) -> bool:
    return (type(value).__module__, type(value).__name__) in KINDS


def inside(loader: Any) -> Any:
    """The loader in it; `loader` itself if it is not Fabric's."""
    return loader._dataloader if is_loader(loader) else loader


def begin(loader: Any, begun: Callable[[Any], Iterator[Any]]) -> Iterator[Any]:
    """Iterate it as its __iter__ would, but `begun` begins the loader inside, now and not as the
    first batch is asked for."""
    from lightning.fabric.utilities import move_data_to_device
    from lightning.fabric.utilities.data import _set_sampler_epoch

    inner, device = loader._dataloader, loader._device
    _set_sampler_epoch(inner, loader._num_iter_calls)
    loader._num_iter_calls += 1
    items = begun(inner)
    return items if device is None else (move_data_to_device(item, device) for item in items)

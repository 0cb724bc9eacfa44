"""Iterates a loader so that a replacement can resume it in the middle and gets the same batches."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from taskd import raised
from taskd.worker.state import fabric, plain

log = logging.getLogger("taskd.worker")

# the ways to begin a loader in the middle: by its own state, by its sampler, by drawing all again
MOVED, SKIPPED, WHOLE = "moved", "skipped", "whole"
# loaders of which each later pass, too, begins where load_state_dict() has moved them to
STICKS = {("datasets.iterable_dataset", "IterableDataset")}
_NONE = object()
SAY_EVERY = 5.0  # seconds of drawing again
STATE_LIMIT = 1 << 20  # bytes of a loader's own state in each record


class _Later:
    """A sampler that begins `skip` items later. Skipped items are drawn but not loaded, so its
    generator advances as before."""

    def __init__(self, sampler: Any, skip: int) -> None:
        self._sampler, self.skip = sampler, skip

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self._sampler), self.skip, None)

    def __len__(self) -> int:
        return max(len(self._sampler) - self.skip, 0)


def has_workers(loader: Any) -> bool:
    """Whether other processes load the batches; their generators carry over from batch to batch."""
    loader = fabric.inside(loader)
    return isinstance(loader, DataLoader) and loader.num_workers > 0


def ways(state: bytes) -> list[str]:
    """The ways to begin a loader in the middle, the fastest first."""
    return [MOVED, SKIPPED, WHOLE] if state else [SKIPPED, WHOLE]


def begin(
    loader: Iterable[Any], skip: int, way: str = SKIPPED, state: bytes = b""
) -> Iterator[Any]:
    """An iterator over `loader` whose first item is number `skip`.

    MOVED: by its own `load_state_dict`, to what `state` returned. SKIPPED: a map-style torch
    DataLoader through its sampler. Anything else, and WHOLE, is iterated, and the items before are
    dropped.
    """
    if way == MOVED:
        if not load(loader, state):
            return iter(())  # without an item, the next way is tried
        return iter(loader)
    if skip == 0:
        return iter(loader)
    if fabric.is_loader(loader):
        return fabric.begin(loader, lambda inner: begin(inner, skip, way))
    if (
        way == SKIPPED
        and type(loader) is DataLoader
        and not isinstance(loader.dataset, IterableDataset)
    ):
        if loader.num_workers == 0:
            iterator = iter(loader)
            # after iter(), so that seeds are drawn in the same order
            for _ in islice(iterator._sampler_iter, skip):
                pass
            return iterator
        name = "batch_sampler" if loader.batch_sampler is not None else "sampler"
        original = getattr(loader, name)
        # DataLoader refuses assignment of a sampler after __init__; restored below
        later = _Later(original, skip)
        object.__setattr__(loader, name, later)
        begun: Any = loader._iterator  # of persistent workers
        if begun is not None:
            begun._index_sampler = later
        try:
            return iter(loader)
        finally:
            object.__setattr__(loader, name, original)
            if begun is not None:
                begun._index_sampler = original
            later.skip = 0  # persistent workers keep it for later passes
    items: Iterator[Any] = iter(loader)
    _draw_again(items, skip, type(loader).__name__)
    return items


def sticks(loader: Any) -> bool:
    return any((kind.__module__, kind.__name__) in STICKS for kind in type(loader).__mro__)


def rest(iterator: Iterator[Any]) -> Iterator[Any]:
    """Its items by next() alone: a loop asks for an iterator once more, and a loader that is its
    own would begin again."""
    while (item := next(iterator, _NONE)) is not _NONE:
        yield item


def _draw_again(iterator: Iterator[Any], count: int, name: str) -> None:
    began = said = time.monotonic()
    for drawn, _ in enumerate(islice(rest(iterator), count), 1):
        if (now := time.monotonic()) - said >= SAY_EVERY:
            said = now
            log.warning(
                "%s: %d of %d batches are drawn again to reach this rank's place, for %.0f s so"
                " far; a loader with state_dict() and load_state_dict() is moved there instead",
                name,
                drawn,
                count,
                now - began,
            )


def load(loader: Any, state: bytes) -> bool:
    """Move a loader by its load_state_dict(); whether it could be."""
    try:
        loader.load_state_dict(plain.decode(state))
        return True
    except Exception as error:  # the script's code
        raised.heed(error)
        log.warning(
            "%s cannot be moved by its load_state_dict(): %s: %s",
            type(loader).__name__,
            type(error).__name__,
            error,
        )
        return False


def state_of(loader: Any) -> bytes:
    """The state_dict() of a loader in the middle of a pass; b"" if it has none that can be
    recorded."""
    if not (hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")):
        return b""
    try:
        data = plain.encode(loader.state_dict())
    except Exception as error:  # the script's code; the loader is drawn from again
        raised.heed(error)
        return b""
    return data if len(data) <= STATE_LIMIT else b""


def plan(loader: Any, total: int | None) -> str:
    """Of which steps a pass consists; of torch's loaders how many batches they give, and of which
    epoch, as the script has set it."""
    if loader is None:
        return f"job.steps to step {total}"
    found, inside = [], fabric.inside(loader)
    if isinstance(inside, DataLoader):
        try:
            found.append(f"{len(inside)} batches")
        except Exception as error:  # of an IterableDataset it may be unknown
            raised.heed(error)
        for sampler in (inside.sampler, getattr(inside.batch_sampler, "sampler", None)):
            # what counts its passes itself, as Fabric does, is at the first in a replacement
            counts = getattr(type(sampler), "__iter__", None) is not DistributedSampler.__iter__
            counts = counts or inside is not loader
            if isinstance(sampler, DistributedSampler) and not counts:
                found.append(f"epoch {sampler.epoch}")
                break
    return f"job.batches of {', '.join(found)}" if found else "job.batches"

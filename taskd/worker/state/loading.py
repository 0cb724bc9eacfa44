"""Iterates a loader so that a replacement can resume it in the middle and gets the same batches."""

from __future__ import annotations

import logging
import random
import sys
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, Sampler

from taskd import raised
from taskd.worker.state import fabric, plain

log = logging.getLogger("taskd.worker")

# the ways to begin a loader in the middle: by its own state, by its sampler, by drawing all again
MOVED, SKIPPED, WHOLE = "moved", "skipped", "whole"
SAY_EVERY = 5.0  # seconds of drawing again
STATE_LIMIT = 1 << 20  # bytes of a loader's own state in each record
DEPTH, OBJECTS = 5, 200  # how far around a loader to search for its generators
ATOMS = (bool, int, float, str, type(None))


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
        # without an item, the next way is tried
        return iter(loader) if _load(loader, state) else iter(())
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
        try:
            return iter(loader)
        finally:
            object.__setattr__(loader, name, original)
            later.skip = 0  # persistent workers keep it for later passes
    items: Iterator[Any] = iter(loader)
    _draw_again(items, skip, type(loader).__name__)
    return items


def _draw_again(iterator: Iterator[Any], count: int, name: str) -> None:
    began = said = time.monotonic()
    for drawn, _ in enumerate(islice(iterator, count), 1):
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


def _load(loader: Any, state: bytes) -> bool:
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


def state(loader: Any) -> bytes:
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


# -- what a loader keeps from pass to pass ---------------------------------------------------------


def plan(loader: Any) -> str:
    """How many batches torch's loaders give, and of which epoch, as the script has set it."""
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
    return f" of {', '.join(found)}" if found else ""


def generators(loader: Any) -> list[Any]:
    """The generators that a loader, its samplers and its data set hold, in an order that depends
    only on names."""
    return [value for value in _around(loader) if is_generator(value)]


def is_generator(value: Any) -> bool:
    """Whether `value` is a generator, other than the process-wide ones, which every record has."""
    if isinstance(value, torch.Generator):
        return value is not torch.default_generator
    if isinstance(value, random.Random):
        return value is not random._inst and not isinstance(value, random.SystemRandom)
    numpy = sys.modules.get("numpy")
    if numpy is None or "numpy.random" not in sys.modules:
        return False
    if isinstance(value, numpy.random.RandomState):
        return value is not numpy.random.mtrand._rand
    return isinstance(value, numpy.random.Generator)


def place(loader: Any) -> bytes:
    """The counters of a loader and its samplers (`epoch`, `iteration`), which a replacement lacks
    because it has not iterated the earlier passes; and its own state. torch's loaders have none
    between two passes: asking for it would begin one."""
    counters = [_atoms(value) for value in _around(loader) if _counts(value)]
    return plain.encode([counters, b"" if isinstance(loader, DataLoader) else state(loader)])


def put_place(loader: Any, data: bytes) -> None:
    """Restore what `place` returned. Raises RuntimeError if the replacement's loader is built
    differently."""
    (kept, own), here = plain.decode(data), [value for value in _around(loader) if _counts(value)]
    if not isinstance(kept, list) or len(kept) != len(here):
        raise RuntimeError(
            f"the loader {type(loader).__name__} is built differently from that of the rank's"
            " previous process"
        )
    for value, atoms in zip(here, kept, strict=True):
        present = _atoms(value)
        for name, atom in atoms.items():
            if name not in present or present[name] != atom:
                object.__setattr__(value, name, atom)
    if own:
        _load(loader, own)


def _counts(value: Any) -> bool:
    return isinstance(value, (DataLoader, Sampler)) or fabric.is_loader(value)


def _atoms(value: Any) -> dict[str, Any]:
    # some of DataLoader's own can be set only once
    return {
        k: v
        for k, v in vars(value).items()
        if type(v) in ATOMS and not k.startswith("_DataLoader__")
    }


def _around(loader: Any) -> Iterator[Any]:
    """The loader and the objects reachable through its attributes, each once."""
    seen: set[int] = set()
    todo = [(loader, 0)]
    while todo and len(seen) < OBJECTS:
        value, depth = todo.pop(0)
        if id(value) in seen:
            continue
        seen.add(id(value))
        yield value
        if depth < DEPTH and not isinstance(value, (torch.Tensor, torch.nn.Module, type)):
            inside = getattr(value, "__dict__", None)
            if isinstance(inside, dict):
                todo += [
                    (v, depth + 1) for v in inside.values() if is_generator(v) or _is_object(v)
                ]


def _is_object(value: Any) -> bool:
    return (
        hasattr(value, "__dict__") and not callable(value) and type(value).__module__ != "builtins"
    )

"""Iterating a loader so that a replacement can take it up in the middle without loading what it skips."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from torch.utils.data import DataLoader, IterableDataset


class _Later:
    """A sampler that begins `skip` items later. The items before it are drawn, not loaded: its random numbers stay in step."""

    def __init__(self, sampler: Any, skip: int) -> None:
        self._sampler, self._skip = sampler, skip

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self._sampler), self._skip, None)

    def __len__(self) -> int:
        return max(len(self._sampler) - self._skip, 0)


def begin(loader: Iterable[Any], skip: int) -> Iterator[Any]:
    """An iterator over `loader` that hands out its item number `skip` first.

    A map-style torch DataLoader is moved through its sampler. Anything else is iterated and what comes before is dropped.
    """
    if skip == 0:
        return iter(loader)
    if type(loader) is DataLoader and not isinstance(loader.dataset, IterableDataset):
        if loader.num_workers == 0:
            iterator: Any = iter(loader)
            for _ in islice(iterator._sampler_iter, skip):  # after iter(): the order in which seeds are drawn stays
                pass
            return iterator  # type: ignore[no-any-return]
        name = "batch_sampler" if loader.batch_sampler is not None else "sampler"
        original = getattr(loader, name)
        # DataLoader refuses the assignment of a sampler after __init__; it is put back before anybody can see
        object.__setattr__(loader, name, _Later(original, skip))
        try:
            return iter(loader)
        finally:
            object.__setattr__(loader, name, original)
    iterator = iter(loader)
    for _ in islice(iterator, skip):
        pass
    return iterator

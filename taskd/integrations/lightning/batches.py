"""Batches of `Trainer.fit`, drawn from `job.iterate`."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.loops import fetchers, fit_loop
from torch.utils.data import DataLoader

from taskd.integrations.lightning.state import TrainerState
from taskd.worker.training.draws import Passes


@dataclass
class _Item:
    """What Lightning's loop takes, and whether it is the last of its pass."""

    value: Any
    last: bool


class _Pass:
    """A pass over several loaders, or over one without a length. `ahead`: one item is read ahead,
    as Lightning does where it cannot know the last one."""

    def __init__(self, loaders: Iterable[Any], ahead: bool) -> None:
        self._loaders, self._ahead = loaders, ahead

    def __iter__(self) -> Iterator[_Item]:
        return _items(iter(self._loaders), self._ahead)


def _items(iterator: Iterator[Any], ahead: bool) -> Iterator[_Item]:
    # now, and not with the first item
    return _each(iterator, ahead, _one(iterator) if ahead else [])


def _each(iterator: Iterator[Any], ahead: bool, first: list[Any]) -> Iterator[_Item]:
    while found := first if ahead else _one(iterator):
        if ahead:
            first = _one(iterator)
        yield _Item(found[0], ahead and not first)


def _one(iterator: Iterator[Any]) -> list[Any]:
    """The next item; nothing at the end. Lightning's iterators begin anew in a `for` loop."""
    try:
        return [next(iterator)]
    except StopIteration:
        return []


class Fetcher(fetchers._DataFetcher):  # type: ignore[misc]
    """Draws batches from `job.iterate`. Lightning begins the first pass when it sets up its loop,
    and each later one before its epoch; here that one begins with its first batch."""

    def __init__(self, fit: Any) -> None:
        super().__init__()
        self._fit = fit
        self._drawn: Passes | None = None
        self.state: TrainerState | None = None

    def __iter__(self) -> Fetcher:
        if self._drawn is None:
            self._before = _generators(self.combined_loader.flattened)
            self.iterator = iter(self.combined_loader)
        self.reset()
        if self._drawn is None:
            self.iterator = self._begun()
        return self

    def _alone(self) -> DataLoader[Any] | None:
        """The loader, where there is one with a length: a replacement moves its sampler."""
        loaders = self.combined_loader
        alone = len(loaders.flattened) == 1 and loaders.flattened[0] is loaders.iterables
        found = loaders.flattened[0] if alone and self.length is not None else None
        return found if isinstance(found, DataLoader) else None

    def _begun(self) -> Iterator[Any]:
        """The iterator of the pass that has just begun."""
        if self._alone() is not None:
            (iterator,) = self.combined_loader._iterator.iterators
            return iter(iterator)
        return _items(self.combined_loader, self.length is None)

    def loader_of(self, number: int) -> Iterable[Any]:
        first = self.state.first if self.state is not None else 0
        for loader in self.combined_loader.flattened:
            fit_loop._set_sampler_epoch(loader, first + number)
        return self._alone() or _Pass(self.combined_loader, self.length is None)

    def draw_from(self, drawn: Passes) -> None:
        assert self.iterator is not None
        self._drawn = drawn
        drawn.has_begun(self.iterator, self._before)

    def __next__(self) -> Any:
        drawn = self._drawn
        assert drawn is not None
        if self.fetched == 0:
            drawn.leave_pass()
        self._start_profiler()
        try:
            found = next(drawn)
        except StopIteration:
            self.done = True
            raise
        finally:
            self._stop_profiler()
        self.fetched += 1
        last = self.length is not None and self.fetched >= self.length
        if isinstance(found, _Item):
            found, last = found.value, found.last or last
        else:
            found = found, self.fetched - 1, 0
        self.done = last
        return found


@contextmanager
def drawn() -> Iterator[None]:
    """Lightning's loop takes its batches from a `Fetcher`."""
    select = fit_loop._select_data_fetcher

    def ours(trainer: Trainer, stage: Any) -> Any:
        found = select(trainer, stage)
        kind = fetchers._DataLoaderIterDataFetcher
        return found if isinstance(found, kind) else Fetcher(trainer.fit_loop)

    fit_loop._select_data_fetcher = ours
    try:
        yield
    finally:
        fit_loop._select_data_fetcher = select


def _generators(loaders: Iterable[Any]) -> Callable[[], None]:
    """A function that puts the generators back to where they are now."""
    own = [g for loader in loaders if (g := getattr(loader, "generator", None)) is not None]
    states = [generator.get_state() for generator in own]
    torchs, numpys, pythons = torch.get_rng_state(), numpy.random.get_state(), random.getstate()

    def put() -> None:
        for generator, state in zip(own, states, strict=True):
            generator.set_state(state)
        torch.set_rng_state(torchs)
        numpy.random.set_state(numpys)
        random.setstate(pythons)

    return put

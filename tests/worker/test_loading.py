"""A loader that is taken up in the middle of a pass."""

from __future__ import annotations

import types

import pytest
import torch
from torch.utils.data import DataLoader

from taskd.worker.state import loading, places, plain

DATA = list(range(12))


def rows(loader) -> list[list[int]]:
    return [batch.tolist() for batch in loader]


@pytest.mark.parametrize("skip", [0, 2])
@pytest.mark.parametrize("way", [loading.SKIPPED, loading.WHOLE])
def test_a_later_pass_of_persistent_workers_in_a_new_process(skip, way):
    """The first pass that they give draws a seed for them, and later ones do not."""

    def made():
        generator = torch.Generator().manual_seed(5)
        more = {"num_workers": 1, "persistent_workers": True, "shuffle": True}
        return DataLoader(DATA, 3, generator=generator, **more), generator

    (loader, generator), (new, other) = made(), made()
    first = rows(loader)
    place, random = places.place(loader), generator.get_state()
    second, third = rows(loader), rows(loader)
    assert not places.start_workers(made()[0], places.place(made()[0]))
    places.put_place(new, place)
    assert places.start_workers(new, place)
    for _ in range(2):  # a way that fails is followed by the next
        other.set_state(random)
        assert not places.start_workers(new, place) or skip
        assert rows(loading.begin(new, skip, way)) == second[skip:]
    assert first != second != third == rows(new)


class IterableDataset:
    """One whose every pass begins where load_state_dict() has moved it to, as Hugging Face's do."""

    __module__ = "datasets.iterable_dataset"

    def __init__(self) -> None:
        self.start: dict = {}
        self.drawn = 0

    def __iter__(self):
        for number in range(self.start.get("drawn", 0) + 1, 6):
            self.drawn = number
            yield number

    def state_dict(self):
        return {"drawn": self.drawn}

    def load_state_dict(self, state):
        self.start = state


def test_later_passes_of_a_loader_that_was_moved_begin_at_the_start():
    loader, other = IterableDataset(), IterableDataset()
    batches = iter(loader)
    state = [next(batches), next(batches), loading.state_of(loader)][-1]
    moved = loading.begin(other, 2, loading.MOVED, state)
    assert list(places.releasing(other, moved)) == [3, 4, 5]
    assert list(other) == list(other) == [1, 2, 3, 4, 5]
    assert plain.decode(places.place(other))[1] == b""
    outer = types.SimpleNamespace(dataset=other)
    loading.load(other, state)
    places.release(outer)
    assert list(other) == [1, 2, 3, 4, 5], "one that another loader reads"


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("persistent", [False, True])
def test_the_passes_after_it_are_whole(workers, persistent):
    """Persistent workers keep the sampler that the first pass began with."""
    loader = DataLoader(DATA, 3, num_workers=workers, persistent_workers=persistent and workers > 0)
    rest = [batch.tolist() for batch in loading.begin(loader, 2)]
    assert rest == [[6, 7, 8], [9, 10, 11]]
    assert [batch.tolist() for batch in loader] == torch.tensor(DATA).reshape(4, 3).tolist()


class Stream:
    """A loader that goes on where it is."""

    def __init__(self) -> None:
        self.place, self.drawn = 0, 0

    def __iter__(self):
        while self.place < 12:
            self.place, self.drawn = self.place + 1, self.drawn + 1
            yield self.place

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.place = state["place"]


def test_a_loader_with_a_state_is_moved():
    first, second = Stream(), Stream()
    batches = iter(first)
    assert [next(batches) for _ in range(5)] == [1, 2, 3, 4, 5]
    state = loading.state_of(first)
    assert loading.ways(state)[0] == loading.MOVED
    assert next(loading.begin(second, 5, loading.MOVED, state)) == 6 and second.drawn == 1


class Refusing(Stream):
    def load_state_dict(self, state):
        raise KeyError("epoch")


def test_a_loader_that_cannot_be_moved_says_so_and_is_drawn_from(caplog):
    loader = Refusing()
    state = loading.state_of(loader)
    assert next(loading.begin(loader, 5, loading.MOVED, state), None) is None
    assert "Refusing cannot be moved by its load_state_dict(): KeyError: 'epoch'" in caplog.text
    assert next(loading.begin(loader, 5, loading.ways(state)[1], state)) == 6


@pytest.mark.parametrize("state", [object(), b"x" * (loading.STATE_LIMIT + 1)])
def test_a_state_that_cannot_be_recorded_is_none(state):
    loader = Stream()
    loader.state_dict = lambda: state
    assert loading.state_of(loader) == b"" and loading.MOVED not in loading.ways(b"")


def test_drawing_again_is_shown(caplog, monkeypatch):
    monkeypatch.setattr(loading, "SAY_EVERY", 0.0)
    loading.begin(Stream(), 3)
    assert "Stream: 3 of 3 batches are drawn again to reach this rank's place" in caplog.text

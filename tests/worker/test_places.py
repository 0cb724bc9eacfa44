"""What a loader keeps from pass to pass, and what another process has of it."""

from __future__ import annotations

import functools
import random
import threading
import weakref

import numpy
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from taskd.worker.state import places, plain

N = 8


class Samples(Dataset):
    def __init__(self, change=lambda samples: None):
        self.change, self.seen = change, 0

    def __len__(self):
        return N

    def __getitem__(self, number):
        self.change(self)
        return torch.tensor([float(number), self.seen])


class Batches:
    """No class of torch, with an order that it shuffles in place, and a count."""

    def __init__(self):
        self.order, self.passes, self.random = list(range(N)), 0, random.Random(1)

    def __iter__(self):
        self.passes += 1
        self.random.shuffle(self.order)
        yield from (self.order[i : i + 2] for i in range(0, N, 2))


class Listed(Sampler):
    def __init__(self):
        self.order = list(range(N))

    def __len__(self):
        return N

    def __iter__(self):
        self.order.append(self.order.pop(0))
        return iter(self.order)


class Collate:
    calls = 0

    def __call__(self, items):
        self.calls += 1
        return torch.stack(items) + self.calls


class Chain:
    """Counts, and has a part that counts."""

    def __init__(self):
        self.collate, self.passes = Collate(), 0

    def __iter__(self):
        self.passes += 1
        for number in range(4):
            yield self.collate([torch.tensor(number)])


def counted(samples):
    samples.seen += 1


LOADERS = {
    "batch sampler": lambda: DataLoader(Samples(), batch_sampler=Batches()),
    "sampler": lambda: DataLoader(Samples(), batch_size=2, sampler=Listed()),
    "collator": lambda: DataLoader(Samples(), batch_size=2, collate_fn=Collate()),
    "data set": lambda: DataLoader(Samples(counted), batch_size=2),
    "of a script": Chain,
}


def values(loader):
    return [batch.tolist() for batch in loader]


@pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS)
def test_a_replacement_has_the_next_passes(make):
    random.seed(1)
    first, second = make(), make()
    places.place(first)
    for _ in range(3):
        values(first)
        generators = [g.getstate() for g in places.generators(first)]
        data = places.place(first)
        for generator, state in zip(places.generators(second), generators, strict=True):
            generator.setstate(state)
        places.put_place(second, data)
    assert values(second) == values(first)
    assert values(second) == values(first)


@pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS)
def test_the_end_of_a_pass_is_put_whatever_was_read_for_it(make):
    first, second = make(), make()
    start = places.place(first)
    values(first)
    states = [g.getstate() for g in places.generators(first)]
    places.put_place(second, start)  # its pass is skipped
    places.put_end(second, places.at_end(start, first))
    for generator, state in zip(places.generators(second), states, strict=True):
        generator.setstate(state)
    assert values(second) == values(first)


@pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS)
def test_a_second_try_begins_where_the_first_did(make):
    loader = make()
    states = [g.getstate() for g in places.generators(loader)]
    start = places.place(loader)
    wanted = values(loader)
    for generator, state in zip(places.generators(loader), states, strict=True):
        generator.setstate(state)
    places.put_place(loader, start)
    assert values(loader) == wanted


def test_others_that_have_the_same_object_see_the_change():
    first, second = (DataLoader(Samples(), batch_size=2, sampler=Listed()) for _ in range(2))
    places.place(first)
    order = second.sampler.order
    values(first)
    places.put_place(second, places.place(first))
    assert second.sampler.order is order and order == first.sampler.order


def opened(samples):
    samples.file, samples.open = threading.Lock(), True


def test_a_flag_is_not_put_without_what_it_describes():
    first, second = (DataLoader(Samples(opened), batch_size=2) for _ in range(2))
    for loader in (first, second):
        loader.dataset.file, loader.dataset.open = None, False
    places.place(first)
    values(first)
    places.put_place(second, places.place(first))
    assert second.dataset.open is False


def grown(samples):
    samples.table = [0] * (places.ITEMS + samples.seen)
    samples.seen += 1


def test_what_is_large_is_no_part_of_a_record():
    loader = DataLoader(Samples(grown), batch_size=2)
    places.place(loader)
    values(loader)
    assert len(places.place(loader)) < 1000
    held = plain.decode(places.place(loader))[2]
    assert not any("table" in values for values in held.values())


def test_what_a_process_has_of_its_own_stays(tmp_path):
    """Only what has changed is put, and nothing is taken away."""
    first, second = Chain(), Chain()
    first.where, second.where, second.lazy = "/tmp/a", "/tmp/b", 1
    places.place(first), places.place(second)
    first.passes = 5
    places.put_place(second, places.place(first))
    assert (second.passes, second.where, second.lazy) == (5, "/tmp/b", 1)


class Mine(Sampler):
    """Counts, and keeps what no record has."""

    def __init__(self):
        self.epoch, self.kept = 0, None

    def __len__(self):
        return N

    def __iter__(self):
        self.epoch += 1
        self.kept = object()
        return iter(range(N))


def test_the_counter_of_a_sampler_is_put_whatever_else_it_keeps():
    first, second = (DataLoader(Samples(), sampler=Mine()) for _ in range(2))
    places.place(first), places.place(second)
    values(first), values(first)
    places.put_place(second, places.place(first))
    assert second.sampler.epoch == 2


def test_what_others_restore_is_left_to_them():
    """A dict that was given to protect(), and an object of the loop's."""
    first, second = Chain(), Chain()
    for loader in (first, second):
        loader.state, loader.part = {"level": 1.0}, Collate()
        places.place(loader)
    first.state["level"], first.part.calls, first.passes = 2.0, 2, 2
    second.state["level"], second.part.calls = 5.0, 5  # restored
    ours = {id(second.state), id(second.part)}
    places.put_place(second, places.place(first), ours)
    assert (second.state["level"], second.part.calls, second.passes) == (5.0, 5, 2)
    places.put_place(second, places.place(first), None)
    assert places.shares(second, {id(second.part)}) and not places.shares(second, {id(first)})


def test_what_a_loader_reads_by_its_collator_is_found():
    class Steers:
        level = 1

        def __init__(self):
            self.state = {}

        def collate(self, items):
            return items

    steers, state = Steers(), {}
    for collate in (
        steers.collate,
        functools.partial(steers.collate),
        lambda items: (steers, items),
        functools.partial(lambda items, state: items, state=state),
    ):
        loader = DataLoader(Samples(), collate_fn=collate)
        assert places.shares(loader, {id(steers), id(state)})
    assert places.shares(DataLoader(Samples(), collate_fn=steers.collate), {id(steers.state)})
    assert not places.shares(DataLoader(Samples()), {id(steers), id(state)})
    loader.dataset.net = torch.nn.Linear(2, 2)
    assert places.shares(loader, set())


def test_an_object_that_is_live_says_nothing_of_itself():
    first, second = Chain(), Chain()
    for loader in (first, second):
        loader.thread, loader.started = threading.Thread(), False
        places.place(loader)
    first.started = True
    places.put_place(second, places.place(first))
    assert second.started is False


class Reader:
    handle = None


def test_nor_does_one_above_what_has_opened_something():
    first, second = (DataLoader(Samples(), batch_size=2) for _ in range(2))
    for loader in (first, second):
        loader.dataset.reader, loader.dataset.ready = Reader(), False
        loader.dataset.reader.handle = None
        places.place(loader)
    first.dataset.reader.handle, first.dataset.ready = Reader(), True
    places.put_place(second, places.place(first))
    assert second.dataset.ready is False


class Hostile:
    def __getattribute__(self, name):
        raise ValueError(name)


def freed():
    tensor = torch.zeros(4)
    tensor.untyped_storage().resize_(0)
    return tensor


ODD = {
    "sparse": lambda: torch.eye(3).to_sparse(),
    "meta": lambda: torch.zeros(3, device="meta"),
    "meta in a list": lambda: [torch.zeros(3, device="meta")],
    "nested": lambda: torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]),
    "freed": freed,
    "large": lambda: numpy.zeros(1 << 24),
    "large inside": lambda: {"x": numpy.zeros(1 << 24)},
    "structured": lambda: numpy.zeros(2, dtype=[("a", "i4")]),
    "dead proxy": lambda: weakref.proxy(Chain()),
    "hostile": Hostile,
    "itself": lambda: (made := []).append(made) or made,
    "deep": lambda: [[[[[1]]]]],
}


@pytest.mark.parametrize("make", ODD.values(), ids=ODD)
def test_odd_attributes_are_no_part_of_a_record_and_end_nothing(make):
    first, second = Chain(), Chain()
    for loader in (first, second):
        loader.odd, loader.all = make(), [make(), 1]
        places.place(loader)
    first.passes = 3
    data = places.place(first)
    assert len(data) < 1000
    places.put_place(second, data)
    assert second.passes == 3


def test_an_array_is_put_where_others_see_it():
    first, second = Chain(), Chain()
    for loader in (first, second):
        loader.order = numpy.arange(8)
        places.place(loader)
    order = second.order
    first.order[:] = first.order[::-1].copy()
    places.put_place(second, places.place(first))
    assert second.order is order and order.tolist() == list(range(7, -1, -1))


def test_generators_are_found_behind_many_other_attributes():
    data = Samples()
    for name in "image", "label", "mask", "affine":
        setattr(data, name, [torch.zeros(1) for _ in range(60)])
    generator = torch.Generator()
    loader = DataLoader(data, shuffle=True, generator=generator)
    assert places.generators(loader) == [generator]


def test_the_script_s_modules_and_code_are_left_alone():
    class Net(torch.nn.Module):
        pass

    loader = Chain()
    loader.net, loader.kind = Net(), Collate
    places.place(loader)
    loader.net.train(False)
    loader.passes = 1
    assert set(plain.decode(places.place(loader))[2]) == {places.ROOT}


def test_numbers_of_numpy_in_a_container():
    """As `list(generator.integers(...))` has them."""
    value = {"left": [numpy.int64(3), numpy.float32(0.5)], "none": (numpy.bool_(True),)}
    found = plain.decode(places._encoded(value))
    assert plain.same(found, value) and type(found["left"][0]) is numpy.int64
    assert not places._encoded([numpy.array([object()])[0]])

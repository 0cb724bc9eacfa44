"""What a loader keeps from pass to pass, and what another process has of it."""

from __future__ import annotations

import random
import threading

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
    def __init__(self):
        self.calls = 0

    def __call__(self, items):
        self.calls += 1
        return torch.stack(items) + self.calls


class Chain:
    """Holds what counts in a list, and counts itself."""

    def __init__(self):
        self.parts, self.passes = [Collate(), {"last": Collate()}], 0

    def __iter__(self):
        self.passes += 1
        for number in range(4):
            yield self.parts[0]([torch.tensor(number)])


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
    samples.table = [0] * (places.LONGEST + samples.seen)
    samples.seen += 1


def test_what_is_large_is_no_part_of_a_record():
    loader = DataLoader(Samples(grown), batch_size=2)
    places.place(loader)
    values(loader)
    assert len(places.place(loader)) < 1000
    held = plain.decode(places.place(loader))[2]
    assert not any("table" in values for values in held.values())


def test_an_attribute_that_is_gone_is_taken_away():
    first, second = Chain(), Chain()
    places.place(first), places.place(second)
    second.left_over = 1
    first.passes = 5
    places.put_place(second, places.place(first))
    assert second.passes == 5 and not hasattr(second, "left_over")


def test_the_script_s_modules_and_code_are_left_alone():
    class Net(torch.nn.Module):
        pass

    loader = Chain()
    loader.parts = [Net(), Collate, len, random]
    places.place(loader)
    loader.parts[0].train(False)
    loader.passes = 1
    assert set(plain.decode(places.place(loader))[2]) == {places.ROOT}

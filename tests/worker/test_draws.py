"""Iterators whose batches are handed out again: any order of attempts; a process that goes on."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from taskd.worker.state.random_state import RandomState
from taskd.worker.training.draws import Draws, Passes

CPU = torch.device("cpu")


def draws_of(seed: int = 0) -> tuple[Draws, RandomState]:
    torch.manual_seed(seed)
    random = RandomState(CPU)
    return Draws(random, nullcontext), random


def noisy():
    """Batches that depend on the process's generator."""
    number = 0
    while True:
        yield torch.rand(2) + number
        number += 1


# what happens at each step: batches drawn in the attempt and after it, and attempts that fail first
# after drawing so many
STEPS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 2), st.lists(st.integers(0, 3), max_size=2)),
    min_size=1,
    max_size=6,
)


def undisturbed(steps) -> list[torch.Tensor]:
    torch.manual_seed(0)
    source = noisy()
    return [next(source) for inside, after, _ in steps for _ in range(inside + after)]


@given(steps=STEPS, again=st.booleans())
def test_each_attempt_draws_the_same(steps, again):
    """`again`: each step is repeated once more after its commit, with the code that follows it."""
    draws, random = draws_of()
    drawn = draws.add(noisy())
    found, starts = [], []
    for step, (inside, after, failed) in enumerate(steps):
        starts.append(random.snapshot())
        for tried in [*(min(n, inside) for n in failed), *([inside] if again else [])]:
            random.restore(starts[step])
            draws.attempt_begins(step, step - 1)
            for _ in range(tried):
                next(drawn)
        random.restore(starts[step])
        draws.attempt_begins(step, step - 1)
        found += [next(drawn) for _ in range(inside)]
        draws.committed(step + 1)
        found += [next(drawn) for _ in range(after)]
    assert all(map(torch.equal, found, undisturbed(steps)))
    assert len(found) == len(undisturbed(steps))


@given(steps=STEPS, at=st.integers(0, 5))
def test_a_new_process_goes_on(steps, at):
    """From the place at a commit, it draws what the previous process drew."""
    draws, random = draws_of()
    drawn = draws.add(noisy())
    places, later = [], []
    for step, (inside, after, _) in enumerate(steps):
        draws.attempt_begins(step, step - 1)
        later.append([next(drawn) for _ in range(inside)])
        draws.committed(step + 1)
        places.append((draws.places(), draws.origins(), random.snapshot()))
        later.append([next(drawn) for _ in range(after)])
    at = min(at, len(steps) - 1)
    others, theirs = draws_of(seed=9)
    new = others.add(noisy())
    theirs.restore(places[at][2])
    others.begin_at(at + 1, *places[at][:2])
    wanted = [batch for section in later[2 * at + 1 :] for batch in section]
    found = [next(new) for _ in wanted]
    assert all(map(torch.equal, found, wanted))


@pytest.mark.parametrize("before", [1, 2])
def test_a_loader_made_after_the_place_is_known(before):
    """`before`: batches drawn by then. As it begins, the loader draws from its generator too."""
    samples = TensorDataset(torch.arange(12.0))

    def loader() -> DataLoader:
        return DataLoader(samples, 2, shuffle=True, generator=torch.Generator().manual_seed(3))

    draws, random = draws_of()
    drawn = draws.add(loader())
    draws.attempt_begins(0, 0 - 1)
    for _ in range(before):
        next(drawn)
    draws.committed(1)
    place = draws.places(), draws.origins(), random.snapshot()
    wanted = [batch[0].tolist() for batch in drawn]

    others, theirs = draws_of(seed=9)
    theirs.restore(place[2])
    others.begin_at(1, *place[:2])
    assert [batch[0].tolist() for batch in others.add(loader())] == wanted


def noisy_pass(number: int):
    """As many batches as its number and one more."""
    for batch in range(number + 1):
        yield torch.rand(2) + 100 * number + batch


def ends(iterator) -> torch.Tensor:
    """The next batch; the end of a pass is -1."""
    return next(iterator, torch.tensor(-1.0))


@given(steps=STEPS, at=st.integers(0, 5))
def test_passes_of_a_function(steps, at):
    """Repeated attempts and a new process find the same ends of passes, too; the new process reads
    the present pass alone."""
    torch.manual_seed(0)
    plain = Passes(noisy_pass)
    wanted = [ends(plain) for inside, after, _ in steps for _ in range(inside + after)]
    draws, random = draws_of()
    drawn = draws.add(noisy_pass)
    found, places = [], []
    for step, (inside, after, failed) in enumerate(steps):
        start = random.snapshot()
        for tries in [*(min(n, inside) for n in failed), inside]:
            random.restore(start)
            draws.attempt_begins(step, step - 1)
            tried = [ends(drawn) for _ in range(tries)]
        found += tried
        draws.committed(step + 1)
        places.append((len(found), draws.places(), draws.origins(), random.snapshot()))
        found += [ends(drawn) for _ in range(after)]
    assert all(map(torch.equal, found, wanted)) and len(found) == len(wanted)

    count, place, origins, state = places[min(at, len(steps) - 1)]
    others, theirs = draws_of(seed=9)
    begun: list[int] = []
    new = others.add(lambda number: begun.append(number) or noisy_pass(number))
    theirs.restore(state)
    others.begin_at(min(at, len(steps) - 1) + 1, place, origins)
    assert all(map(torch.equal, [ends(new) for _ in wanted[count:]], wanted[count:]))
    passes = sum(batch.ndim == 0 for batch in wanted[:count])
    assert set(begun) - {0} == set(range(passes, max(begun) + 1)) - {0}


class Counts(torch.utils.data.Sampler):
    """Another order in each pass, by a counter of its own."""

    def __init__(self, first: int = 0) -> None:
        self.passes = first

    def __len__(self) -> int:
        return 2

    def __iter__(self):
        self.passes += 1
        return iter((self.passes, self.passes + 10))


def counting(first: int = 0) -> DataLoader:
    return DataLoader(range(100), sampler=Counts(first), batch_size=None)


def one_for_all(_number, loader):
    return loader


def its_own(number, _loader):
    return counting(10 * number)


@pytest.mark.parametrize("of_pass", [one_for_all, its_own])
def test_a_loader_that_counts_its_passes(of_pass):
    """Also where the new process begins between two passes."""
    kept = counting()
    draws, random = draws_of()
    drawn = draws.add(lambda number: of_pass(number, kept))
    found, places = [], []
    for step in range(9):
        draws.attempt_begins(step, step - 1)
        found.append(int(ends(drawn)))
        draws.committed(step + 1)
        places.append((draws.places(), draws.origins(), random.snapshot()))
    assert found[:6] == [1, 11, -1, *([2, 12] if of_pass is one_for_all else [11, 21]), -1]
    for step, (place, origins, state) in enumerate(places):
        others, theirs = draws_of(seed=9)
        loader = counting()
        new = others.add(lambda number, loader=loader: of_pass(number, loader))
        theirs.restore(state)
        others.begin_at(step + 1, place, origins)
        assert [int(ends(new)) for _ in found[step + 1 :]] == found[step + 1 :], step


def test_a_pass_is_left_after_protection_has_ended():
    """Trainers begin the next one without having drawn the end of this one."""
    draws, _ = draws_of()
    drawn = draws.add(lambda number: [torch.tensor(10 * number + i) for i in range(3)])
    draws.attempt_begins(0, -1)
    assert next(drawn) == 0
    draws.let_go()
    found = []
    for _ in range(3):
        drawn.leave_pass()
        found += [next(drawn).item(), next(drawn).item()]
    assert found == [10, 11, 20, 21, 30, 31]


def test_what_cannot_be_exact_is_refused():
    draws, _ = draws_of()
    drawn = draws.add(iter([torch.ones(1)] * 9))
    for step in range(5):
        draws.attempt_begins(step, step - 1)
        next(drawn)
    next(drawn).add_(1)
    with pytest.raises(RuntimeError, match="a batch of step 4.* was changed in place"):
        draws.attempt_begins(4, 4 - 1)
    with pytest.raises(RuntimeError, match=r"job.iterate\(\) was called after the first attempt"):
        draws.add(iter([]))

    draws, _ = draws_of()
    drawn, _ = draws.add(iter([torch.ones(1)])), draws.add(iter([]))
    draws.attempt_begins(0, 0 - 1)
    next(drawn)
    draws.committed(1)
    place = draws.places(), draws.origins()
    others, _ = draws_of()
    others.begin_at(1, *place)
    with pytest.raises(RuntimeError, match="gave another batch number 0"):
        others.add(iter([torch.zeros(1)]))
    others, _ = draws_of()
    others.begin_at(1, *place)
    with pytest.raises(RuntimeError, match="2 times more before its loop"):
        others.attempt_begins(1, 0)


def test_a_script_that_changes_its_batches_gets_them_as_they_were():
    draws, _ = draws_of()
    drawn = draws.add(iter([torch.full((2,), float(n)) for n in range(9)]))
    for step in range(9):
        for _ in range(2):
            draws.attempt_begins(step, step - 1)
            assert next(drawn).mul_(2).tolist() == [2.0 * step] * 2
        draws.committed(step + 1)


def test_a_source_that_ends_ends_each_time():
    draws, _ = draws_of()
    drawn = draws.add([torch.ones(1)])
    for _ in range(2):
        draws.attempt_begins(0, 0 - 1)
        assert len(list(drawn)) == 1
    draws.committed(1)
    assert list(drawn) == []


def test_nothing_is_kept_without_protection():
    draws, _ = draws_of()
    drawn = draws.add(iter(range(10)))
    draws.attempt_begins(0, 0 - 1)
    assert [next(drawn), next(drawn)] == [0, 1]
    draws.attempt_begins(0, 0 - 1)
    draws.let_go()
    assert list(drawn) == list(range(10))
    assert sum(len(kept.items) for kept in drawn._kept.values()) == 2

"""What is taken is the state as it is, whatever was drawn and put back in between."""

from __future__ import annotations

import random

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from taskd.worker.state import generator_memory
from taskd.worker.state.random_state import RandomState

DRAWS = {
    "torch": lambda: torch.randn(3).tolist(),
    "python": random.random,
    "gauss": lambda: random.gauss(0, 1),
    "numpy": lambda: numpy.random.random(),
    "normal": lambda: numpy.random.normal(),  # draws two and keeps one
    "two normals": lambda: numpy.random.normal(size=2).tolist(),
}


@pytest.fixture(autouse=True)
def generators():
    kept = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
    random.seed(1), numpy.random.seed(1), torch.manual_seed(1)
    yield
    random.setstate(kept[0]), numpy.random.set_state(kept[1]), torch.set_rng_state(kept[2])


def whole() -> tuple:
    kind, words, *rest = numpy.random.get_state()
    return (
        random.getstate(),
        (kind, tuple(words.tolist()), *rest),
        tuple(torch.get_rng_state().tolist()),
    )


def test_the_cheap_way_is_taken_here():
    assert generator_memory.of_python() is not None
    assert generator_memory.of_numpy(numpy.random.mtrand._rand) is not None
    assert generator_memory.of_torch(torch.default_generator) is not None


def test_back_to_a_deviate_that_was_kept():
    """The generator's memory is the same with the second deviate kept and used: only whether it is
    kept differs."""
    state = RandomState(torch.device("cpu"))
    numpy.random.normal()
    first = state.snapshot()
    ahead = [numpy.random.normal()]
    state.snapshot()
    state.restore(first)
    assert state.snapshot() == first
    assert numpy.random.normal() == ahead[0]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.one_of(st.sampled_from([*sorted(DRAWS), "normal", "take", "take"]), st.integers(0, 9)),
        max_size=30,
    )
)
def test_any_order(story):
    """A number: back to what was taken at that time (modulo how many there are), by us or by the
    script itself."""
    state = RandomState(torch.device("cpu"))
    taken = [(state.snapshot(), whole())]
    for event in story:
        if event == "take":
            taken.append((state.snapshot(), whole()))
        elif isinstance(event, str):
            DRAWS[event]()
        elif event % 2:
            state.restore(taken[event % len(taken)][0])
        else:
            python, of_numpy, of_torch = taken[event % len(taken)][1]
            (
                random.setstate(python),
                numpy.random.set_state(of_numpy),
                torch.set_rng_state(torch.tensor(of_torch, dtype=torch.uint8)),
            )
    now, there = state.snapshot(), whole()
    for draw in DRAWS.values():
        draw()
    state.restore(now)
    assert whole() == there
    for record, was in taken:
        state.restore(record)
        assert whole() == was


MORE = {
    "torch generator": lambda: torch.Generator().manual_seed(1),
    "python generator": lambda: random.Random(1),
    "numpy generator": lambda: numpy.random.default_rng(1),
    "numpy state": lambda: numpy.random.RandomState(1),
}


def draw(generator) -> object:
    if isinstance(generator, torch.Generator):
        return torch.randn(1, generator=generator).item()
    if isinstance(generator, random.Random):
        return generator.gauss(0, 1)
    return float(generator.normal())


@pytest.mark.parametrize("make", MORE.values(), ids=MORE)
def test_a_generator_of_the_script(make):
    generator, state = make(), RandomState(torch.device("cpu"))
    state.watch([generator])
    first = state.snapshot()
    assert state.snapshot() == first
    drawn = [draw(generator) for _ in range(3)]
    second = state.snapshot()
    assert second != first
    state.restore(first)
    assert state.snapshot() == first and [draw(generator) for _ in range(3)] == drawn
    assert state.snapshot() == second


def test_the_same_object_where_nothing_was_drawn():
    state = RandomState(torch.device("cpu"))
    first = state.snapshot()
    assert state.snapshot() is first
    random.random()
    second = state.snapshot()
    assert second != first and state.snapshot() is second


def test_another_generator_in_the_place_of_numpys():
    state = RandomState(torch.device("cpu"))
    state.snapshot()
    kept = numpy.random.get_bit_generator()
    try:
        numpy.random.set_bit_generator(numpy.random.MT19937(7))
        other = state.snapshot()
        numpy.random.random()
        assert state.snapshot() != other
        numpy.random.set_bit_generator(numpy.random.PCG64(7))
        other = state.snapshot()
        numpy.random.random()
        assert state.snapshot() != other
    finally:
        numpy.random.set_bit_generator(kept)


def test_where_no_memory_is_known_it_is_asked(monkeypatch):
    for place in ("of_python", "of_numpy", "of_torch"):
        monkeypatch.setattr(generator_memory, place, lambda *_: None)
    state = RandomState(torch.device("cpu"))
    for some in DRAWS.values():
        before = state.snapshot()
        some()
        assert state.snapshot() != before

"""Attempts by how long they took, as heartbeats tell them and as the journal has them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskd.core.job.durations import Durations, seconds
from taskd.messages.values import KINDS


def kind_of(ns: int) -> int:
    """As csrc/gate.c has it."""
    power = ns.bit_length() - 1
    return 0 if power < 16 else min((power - 16) * 8 + (ns >> (power - 3) & 7), KINDS - 1)


@given(st.integers(1 << 16, (1 << 40) - 1))
def test_a_kind_stands_for_durations_about_as_long(ns):
    assert seconds(kind_of(ns)) == pytest.approx(ns / 1e9, rel=0.065)


def test_kinds_are_in_order():
    every = [seconds(kind) for kind in range(KINDS)]
    assert every == sorted(set(every)) and every[0] < 1e-4 and every[-1] > 1000


def test_what_is_new_is_taken_once():
    durations = Durations()
    durations.heard(0, [(80, 5)])  # an earlier manager may have written these
    assert durations.take() == []
    durations.heard(0, [(80, 7), (90, 1)])
    durations.heard(1, [(80, 9)])
    assert durations.take() == [(round(seconds(80), 6), 2), (round(seconds(90), 6), 1)]
    durations.heard(0, [(80, 7), (90, 1)])
    assert durations.take() == []
    durations.heard(0, [(80, 3)])  # another process
    assert durations.take() == [(round(seconds(80), 6), 3)]


@given(st.lists(st.dictionaries(st.integers(0, KINDS - 1), st.integers(0, 5)), max_size=9))
def test_all_that_one_process_says_is_counted_once(beats):
    durations, counts = Durations(), dict[int, int]()
    durations.heard(0, [])
    for beat in beats:
        for kind, more in beat.items():
            counts[kind] = counts.get(kind, 0) + more
        durations.heard(0, counts.items())
    assert sum(n for _, n in durations.take()) == sum(counts.values())

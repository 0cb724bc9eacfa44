"""The table of levels, checked line by line against what the documents say of each."""

from __future__ import annotations

from itertools import pairwise, product

import pytest

from taskd.core.demand import Demand
from taskd.core.job import ladder
from taskd.mindcluster.levels import NAMED, TABLE, Level, stronger


def test_every_level_has_a_word_and_a_rule():
    assert set(TABLE) == set(Level) == set(NAMED.values())
    numbers = [TABLE[level].number for level in sorted(Level) if TABLE[level].number]
    assert numbers == ["L1", "L2", "L3", "L4", "L5", "L6"]


def test_precedence_is_that_of_the_device_plugin():
    words = [level.word for level in sorted(Level, reverse=True)]
    assert words == [
        "ManuallySeparateNPU",
        "SeparateNPU",
        "PreSeparateNPU",
        "RestartNPU",
        "FreeRestartNPU",
        "RestartBusiness",
        "RestartRequest",
        "SubHealthFault",
        "NotHandleFault",
        "Normal",
    ]


@pytest.mark.parametrize("level", Level)
def test_the_rungs_are_the_ladders_and_in_its_order(level):
    rungs = TABLE[level].rungs
    assert bool(rungs) == (
        TABLE[level].asks in (Demand.RETRY, Demand.REPLACE_RANK, Demand.REPLACE_NODE)
    )
    assert all(ladder.STRATEGIES.index(a) < ladder.STRATEGIES.index(b) for a, b in pairwise(rungs))
    assert not rungs or rungs[-1] == "exit"


def test_a_device_that_takes_no_process_is_never_given_one():
    for rule in TABLE.values():
        if not rule.usable:
            assert "retry" not in rule.rungs and "recover-in-place" not in rule.rungs


def test_what_asks_more_is_not_hidden_by_what_has_precedence():
    assert stronger(Level.PRE_SEPARATE, Level.RESTART) is Level.RESTART
    assert stronger(Level.SEPARATE, Level.MANUALLY_SEPARATE) is Level.MANUALLY_SEPARATE
    for one, other in product(Level, Level):
        assert stronger(one, other) is stronger(other, one)
        assert stronger(one, other) in (one, other)

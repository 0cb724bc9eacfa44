"""Faults at random places, several at a time, some in the set-up of replacements: a story that
nobody thought of."""

from __future__ import annotations

import random

import pytest
import training

POINTS = (
    "begin",
    "forward",
    "backward",
    "reduced",
    "before-update",
    "update",
    "tail",
    "tail-reduced",
    "end",
    "between",
)


@pytest.mark.long
def test_storm(tmp_path, reference):
    generator = random.Random(1)
    faults = set()
    for step in range(1, 60, 2):
        for rank in generator.sample(range(4), generator.choice((1, 1, 1, 2, 3, 4))):
            point = generator.choice(POINTS)
            kind = generator.choice(("kill", "kill", "segv", "_exit1"))
            faults.add(f"{rank}:{step}:{point}:{kind}")
    faults |= {
        f"{generator.randrange(4)}:{generator.randrange(1, 12)}:setup:kill" for _ in range(5)
    }
    result = training.taskd(tmp_path / "job", 4, "mlp.py", "62", faults=",".join(sorted(faults)))
    training.assert_equal(result, reference(4, "mlp.py", "62"), 4)
    assert len(result.incidents) >= 3  # on a slow machine faults join the incident before them

"""Each text in tests/scenarios must produce the output written in it. REWRITE=1 writes the current
output instead: a change of behavior is then a diff to read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from taskd.core.incident import machine, phases
from tests.core import scenario

TEXTS = sorted((Path(__file__).parents[1] / "scenarios").glob("*.txt"))


@pytest.mark.parametrize("path", TEXTS, ids=lambda p: p.stem)
def test_scenario(path):
    text = path.read_text()
    now = scenario.rewrite(text)
    if os.environ.get("REWRITE"):
        path.write_text(now)
    else:
        assert now.splitlines() == text.splitlines(), (
            "if this is meant: REWRITE=1 pytest tests/core/test_scenarios.py, and read the diff"
        )


def test_there_are_scenarios():
    assert len(TEXTS) >= 30


def test_every_move_of_the_table_is_made_in_some_scenario(monkeypatch):
    made = set()

    def after(phase, move):
        made.add((phase, move))
        return phases.after(phase, move)

    monkeypatch.setattr(machine, "after", after)
    for path in TEXTS:
        scenario.rewrite(path.read_text())
    missing = {(phase, move) for phase, moves in phases.TABLE.items() for move in moves} - made
    assert not missing, sorted(f"{p.value}: {m.value}" for p, m in missing)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("form 4 ranks on 1 node\nrank 1 exploded", "line 2: not understood"),
        (
            "form 4 ranks on 1 node\nrank 1 interrupted @ asleep 5",
            "line 2: 'rank 1 interrupted @ asleep 5'",
        ),
        ("form 4 ranks on 1 node [patience=3]", "line 1"),
        ("show", "line 1"),
    ],
)
def test_a_line_that_is_not_understood_is_named(text, complaint):
    with pytest.raises(scenario.ScenarioError, match=complaint):
        scenario.rewrite(text)


def test_rewriting_replaces_the_output_and_nothing_else():
    text = "# why\n\nform 2 ranks on 1 node\n  nonsense\n# more\nshow\n"
    assert scenario.rewrite(text) == (
        "# why\n\nform 2 ranks on 1 node\n  resume at step 0 (interruption 0, generation 1)\n"
        "# more\nshow\n  training; interruption 0, generation 1, next tick never\n"
    )

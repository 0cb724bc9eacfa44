"""The table of docs/operations.md that says what happens when X dies, compared with the ladder."""

from __future__ import annotations

import re
from pathlib import Path

from taskd.core.job import ladder
from taskd.core.job.ladder import Damage

TEXT = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
NONE = frozenset()
RUNGS = ladder.parse("retry,recover-in-place,recover")
# what each row says is gone, in a job of two nodes with two ranks each
DAMAGE = {
    "a connection between ranks": Damage(NONE, NONE, True, living_nodes=2),
    "a rank's process": Damage(frozenset({1}), NONE, True, living_nodes=2),
    "a rank that cannot be kept (it hangs, its memory page fails again)": Damage(
        NONE, NONE, True, evicted={1: "it hangs"}, living_nodes=2
    ),
    "a node: its launcher is killed, it stalls, or it is cut off": Damage(
        frozenset({2, 3}), frozenset({1}), True, living_nodes=1
    ),
    # of three
    "two nodes at once": Damage(frozenset({0, 1, 2, 3}), frozenset({0, 1}), True, living_nodes=1),
    "every node but standbys": Damage(
        frozenset({0, 1, 2, 3}), frozenset({0, 1}), True, living_nodes=0
    ),
}


def test_the_table_says_what_the_ladder_chooses():
    part = TEXT.split("## What happens when it dies")[1].split("## ")[0]
    rows = re.findall(r"^\| (.+?) \| `([a-z-]+)` \|", part, re.MULTILINE)
    assert {name for name, _ in rows} == set(DAMAGE)
    for name, strategy in rows:
        assert ladder.choose(RUNGS, DAMAGE[name]).strategy == strategy, name


def test_the_limits_are_those_of_the_code():
    from taskd.agent.manager import successor
    from taskd.core.settings import Settings
    from taskd.manager.limits import ManagerLimits
    from taskd.protocol import pings

    assert f"after {successor.FIRST:g} s, the second {successor.NEXT:g} s later" in TEXT
    assert f"for {pings.noticed(2):g} s, and once more for {ManagerLimits().probe:g} s" in TEXT
    assert Settings(1, 1).reschedule == 270.0

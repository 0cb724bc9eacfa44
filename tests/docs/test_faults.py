"""The table of docs/faults.md, compared with core."""

from __future__ import annotations

import re
from pathlib import Path

from taskd.core.demand import Demand
from taskd.mindcluster.faults.configuration import load
from taskd.mindcluster.levels import NAMED, TABLE, Level

TEXT = (Path(__file__).parents[2] / "docs" / "faults.md").read_text()


def test_the_table_of_levels_is_that_of_core():
    rows = re.findall(
        r"^\| `(\w+)` \| (L\d|) ?\| ([a-z ]+) \| (yes|no)[^|]* \|([^|]*)\|$", TEXT, re.MULTILINE
    )
    assert [NAMED[row[0]] for row in rows] == [
        level for level in Level if level is not Level.NORMAL
    ]
    for word, number, asks, further, rungs in rows:
        level = NAMED[word]
        rule = TABLE[level]
        assert number == rule.number
        assert asks == rule.asks.value
        assert (further == "yes") == rule.usable
        if rule.asks is not Demand.MOVE_NODE:
            assert tuple(re.findall(r"`([\w-]+)`", rungs)) == rule.rungs


def test_what_is_said_of_the_shipped_rules():
    rules = load().customization.frequency
    times = {code: rule.times for code, rule in rules.items() if rule.times != 2}
    assert times == {"80E18005": 3, "81078603": 5} and len(rules) == 43
    assert "43 codes" in TEXT

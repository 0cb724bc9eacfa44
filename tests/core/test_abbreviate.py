from __future__ import annotations

from taskd.core.abbreviate import FEW, abbreviate


def test_few_are_all_named():
    assert abbreviate([3, 1, 2]) == "3, 1, 2"
    assert abbreviate(range(FEW), ",") == ",".join(map(str, range(FEW)))
    assert abbreviate([]) == ""


def test_of_many_the_first_are_named_and_the_others_counted():
    text = abbreviate(range(10_000))
    assert text.startswith("0, 1, 2") and text.endswith(f"{FEW - 1} and {10_000 - FEW} more")

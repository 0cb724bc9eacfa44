from __future__ import annotations

from taskd.core.listing import FEW, some


def test_few_are_all_named():
    assert some([3, 1, 2]) == "3, 1, 2"
    assert some(range(FEW), ",") == ",".join(map(str, range(FEW)))
    assert some([]) == ""


def test_of_many_the_first_are_named_and_the_others_counted():
    text = some(range(10_000))
    assert text.startswith("0, 1, 2") and text.endswith(f"{FEW - 1} and {10_000 - FEW} more")

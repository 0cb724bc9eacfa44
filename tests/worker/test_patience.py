"""Long operations that a script announces."""

from __future__ import annotations

import pytest

from taskd.cython_api import slot
from taskd.worker.communication.patience import Patience


@pytest.mark.parametrize("came", [0, 1], ids=["undisturbed", "in a repair"])
def test_a_repair_in_a_long_operation_is_named(monkeypatch, caplog, came):
    """What a device reports of a rank that saves is no hang, and is done again."""
    number = 4
    monkeypatch.setattr(slot, "interruption", lambda: number)
    patience = Patience()
    with patience.extended(60.0, "checkpoint"), patience.extended(5.0):
        number += came
    said = [r.getMessage() for r in caplog.records if "a repair began" in r.getMessage()]
    assert len(said) == came
    assert not came or "the long operation 'checkpoint', which was no hang" in said[0]

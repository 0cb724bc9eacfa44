"""The C libraries that MindSpore loads from mindio_ttp's folder; ctypes stands in for it."""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path

import pytest

import taskd.adaptor.mindio as provider
from taskd.adaptor.mindio.updates import Updates
from taskd.cython_api import slot

FOLDER = Path(provider.__path__[0])


def test_an_update_that_the_device_begins_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot, "progress", lambda step, phase: None)  # this process is no rank
    ctypes.CDLL(str(FOLDER / "framework_ttp" / "libttp_framework.so"))
    library = ctypes.CDLL(str(FOLDER / "mindspore_api" / "libttp_c_api.so"))
    updating = library.MindioTtpSetOptimStatusUpdating
    finished = library.MindioTtpSetOptimStatusFinished
    for call in (updating, finished):
        call.argtypes, call.restype = [ctypes.c_int64], ctypes.c_int
    updates = Updates(threading.Condition())
    assert not updates.under_way
    assert updating(-2) == 1
    assert not updates.under_way
    assert updating(-1) == 0
    assert updates.under_way
    assert [finished(0), finished(-1)] == [1, 1] and updates.under_way
    assert finished(1) == 0 and not updates.under_way
    assert updating(7) == 0 and updates.under_way
    assert not updates.close(0.01), "an update is under way"
    assert not updates.whole
    updates.open(3, 1)
    assert not updates.under_way and updates.whole

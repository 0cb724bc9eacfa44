"""A process whose training thread has failed stays while another thread saves the checkpoint."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from taskd.adaptor.mindio import framework_ttp, processor
from taskd.adaptor.mindio.enums import ReportState
from taskd.adaptor.mindio.updates import Stopped


@pytest.fixture
def rank(monkeypatch):
    monkeypatch.setattr(processor, "UNEXPLAINED", 0.2)
    calls = []
    made = SimpleNamespace(
        changed=threading.Condition(),
        repair_type="unknown",
        is_explained=True,
        calls=calls,
        report=lambda *what: calls.append("report"),
        wait_for_action=lambda: calls.append("wait"),
    )
    made.explained = lambda error: made.is_explained
    made.stay_for_dump = lambda explained: processor.Processor.stay_for_dump(made, explained)
    monkeypatch.setattr(processor, "current", lambda: made)
    return made


def decide(rank, strategy):
    with rank.changed:
        rank.repair_type = strategy
        rank.changed.notify_all()


def test_a_stopped_rank_stays_until_its_checkpoint_is_complete(rank):
    later = threading.Timer(0.05, decide, (rank, "dump"))
    later.start()
    with pytest.raises(Stopped):
        framework_ttp.tft_report_error(ReportState.RS_UNKNOWN)
    later.join()
    assert rank.calls == ["wait"]


def test_so_does_the_rank_that_has_failed(rank):
    rank.is_explained = False
    decide(rank, "dump")
    framework_ttp.tft_report_error(ReportState.RS_UNKNOWN.value)
    assert rank.calls == ["report", "wait"]


@pytest.mark.parametrize("strategy", ["unknown", "retry", "recover"])
def test_nobody_stays_for_another_strategy(rank, strategy):
    decide(rank, strategy)
    with pytest.raises(Stopped):
        framework_ttp.tft_report_error(ReportState.RS_UNKNOWN)
    assert rank.calls == []

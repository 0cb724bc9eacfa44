"""A rank says what it has written to those who keep copies, and nothing where nobody does."""

from __future__ import annotations

import os

import pytest

from taskd.core.job.snapshots import FINAL, PROVISIONAL
from taskd.cython_api import slot
from taskd.records.store import NOTE, NOTES
from taskd.worker.state.copies import Copies


@pytest.fixture
def copies(tmp_path, monkeypatch) -> Copies:
    os.mkfifo(tmp_path / NOTES)
    made = Copies(tmp_path, 2)
    made.waited = []
    made.keeps = False
    monkeypatch.setattr(slot, "copying", lambda: made.keeps)
    made.lost = 0  # times that nothing comes back

    def wait_copied(number, built_at, timeout_ms):
        made.waited.append((number, built_at))
        made.lost -= 1
        return None if made.lost >= 0 else True

    monkeypatch.setattr(slot, "wait_copied", wait_copied)
    return made


def told(copies: Copies) -> list[tuple[int, int, int, int]]:
    try:
        return list(NOTE.iter_unpack(os.read(copies._pipe, 1 << 12)))
    except BlockingIOError:
        return []


def test_nobody_is_told_and_nothing_waited_for(copies):
    for step in range(10):
        copies.wrote(step, FINAL)
        assert copies.wait(0)
    assert told(copies) == [] and set(copies.waited) == {(0, 0)}


def test_each_record_where_they_are_kept(copies):
    copies.keeps = True
    copies.wrote(7, PROVISIONAL)
    copies.wrote(8, FINAL)
    assert told(copies) == [(2, PROVISIONAL, 1, 7), (2, FINAL, 2, 8)]
    assert copies.wait(5) and copies.waited == [(2, 5)]


def test_a_note_that_was_lost_is_written_again(copies):
    copies.keeps, copies.lost = True, 2
    copies.wrote(7, FINAL)
    assert copies.wait(5) and copies.waited == [(1, 5)] * 3
    assert told(copies) == [(2, FINAL, 1, 7)] * 3


def test_who_begins_to_keep_them_is_told_of_those_that_are_still_there(copies):
    for step in range(5):
        copies.wrote(step, FINAL)
    copies.keeps = True
    copies.wait(0)
    assert told(copies) == [(2, FINAL, step + 1, step) for step in (2, 3, 4)]
    assert copies.waited == [(5, 0)]
    copies.wait(0)
    assert told(copies) == []


def test_what_was_told_is_waited_for_when_nobody_keeps_them_any_more(copies):
    """The wait itself ends where nobody does."""
    copies.keeps = True
    copies.wrote(1, FINAL)
    copies.keeps = False
    copies.wrote(2, FINAL)
    copies.wait(0)
    assert copies.waited == [(1, 0)]


def test_a_later_process_of_the_rank_waits_for_its_own_records(copies, tmp_path):
    """Keepers have records of the one before, by number."""
    copies.keeps = True
    copies.wrote(5, FINAL)
    later = Copies(tmp_path, 2, incarnation=1)
    later.wrote(5, FINAL)
    assert later.wait(0)
    before, after = (number for _, _, number, _ in told(copies))
    assert after > before + (1 << 31) and copies.waited[-1] == (after, 0)

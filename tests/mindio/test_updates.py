"""Which updates a rank has finished, and whether its state is whole, on a real state page."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from taskd.adaptor.mindio import updates
from taskd.adaptor.mindio.updates import Stopped, Updates
from taskd.cython_api import slot
from taskd.cython_api.page import Page

LIMIT = 60  # a guard against hanging, never a measure


@pytest.fixture
def page() -> Iterator[Page]:
    """Of one rank, this process."""
    with Page.create(f"/dev/shm/taskd-test-{uuid.uuid4().hex}", 1) as page:
        slot.attach(page.path, 0)
        yield page
        slot.detach()


@pytest.fixture
def of_two() -> Iterator[Page]:
    """The other rank never comes."""
    with Page.create(f"/dev/shm/taskd-test-{uuid.uuid4().hex}", 2) as page:
        slot.attach(page.path, 0)
        yield page
        slot.detach()


@pytest.fixture
def damage(monkeypatch) -> SimpleNamespace:
    """What the library would say of this process: `lost` pages, and whether a message is `torn`.
    Real ones: test_jobs.py."""
    now = SimpleNamespace(lost=0, torn=False)
    begin_update, end_update = slot.begin_update, slot.end_update

    def begin(step, built_at, accepted, timeout_ms):
        if now.lost != accepted:
            return slot.LOST
        return slot.TORN if now.torn else begin_update(step, built_at, 0, timeout_ms)

    def end(step, accepted):
        end_update(step, 0)
        return now.lost != accepted, now.torn

    monkeypatch.setattr(updates.damage, "damaged", lambda: now.lost)
    monkeypatch.setattr(updates.damage, "accept", lambda accepted: None)
    monkeypatch.setattr(updates.slot, "begin_update", begin)
    monkeypatch.setattr(updates.slot, "end_update", end)
    return now


@pytest.fixture
def lose(damage) -> Callable[[], None]:
    """Memory pages of this process are lost, one at each call."""

    def one() -> None:
        damage.lost += 1

    return one


def make() -> Updates:
    return Updates(threading.Condition())


def test_updates_are_counted_and_published(page):
    found = make()
    assert (found.step, found.updating, found.closed, found.whole) == (0, False, False, True)
    for step in (1, 2, 3):
        found.begin()
        assert found.updating and found.step == step - 1
        view = page.read(0)
        assert (view.step, view.phase) == (step - 1, slot.UPDATING)
        found.end(step)
        assert not found.updating and found.step == step and found.whole
        view = page.read(0)
        assert (view.step, view.phase) == (step, slot.COMMITTED)


def test_the_framework_s_number_counts(page):
    """It goes on from a checkpoint, and MindSpore tells the end alone."""
    found = make()
    found.end(1000)
    assert found.step == 1000
    found.begin()
    found.end(1001)
    assert found.step == 1001


@pytest.mark.parametrize("step", [0, -1, 1.0, True, "1", None])
def test_a_wrong_number_is_refused(page, step):
    found = make()
    found.begin()
    with pytest.raises(ValueError, match="tft_end_updating_os: step is"):
        found.end(step)
    assert found.updating and found.step == 0


# -- repairs ---------------------------------------------------------------------------------------


def test_once_closed_no_update_begins(page):
    found = make()
    found.end(4)
    assert found.close(0.0) is True
    for _ in range(2):
        with pytest.raises(Stopped, match="FORCE STOP"):
            found.begin()
    assert not found.updating and (found.step, found.whole) == (4, True)
    assert page.read(0).phase == slot.COMMITTED


def test_stopped_is_known_to_both_frameworks_by_its_text():
    assert isinstance(Stopped(), RuntimeError)
    assert "FORCE STOP" in str(Stopped()) and "ForceStopError" in str(Stopped())
    assert "STEP FINISH" in str(Stopped("STEP FINISH"))


def test_closing_waits_for_the_update_that_is_under_way(page):
    found, done = make(), []
    found.begin()
    waiting = threading.Event()
    real = found._changed.wait_for

    def wait_for(predicate, timeout=None):
        waiting.set()
        return real(predicate, timeout)

    found._changed.wait_for = wait_for
    thread = threading.Thread(target=lambda: done.append(found.close(LIMIT)))
    thread.start()
    assert waiting.wait(LIMIT)
    with found._changed:
        assert done == []
    found.end(1)
    thread.join(LIMIT)
    assert done == [True] and found.closed
    assert (found.step, found.whole) == (1, True)


def test_an_update_that_does_not_end_leaves_the_state_not_whole(page):
    found = make()
    found.begin()
    assert found.close(0.0) is False
    assert found.closed and not found.whole and found.updating
    found.end(1)  # after the position was taken
    assert not found.whole
    found.open(1, 0)
    assert found.whole


def test_opening_sets_the_position(page):
    found = make()
    found.end(9)
    page.interrupt(3)
    found.close(0.0)
    found.open(7, 3)
    assert (found.step, found.closed, found.whole) == (7, False, True)
    view = page.read(0)
    assert (view.step, view.phase) == (7, slot.COMMITTED)
    found.begin()
    found.end(8)
    assert found.step == 8


def test_an_interruption_is_enough_to_keep_it_from_beginning(page):
    """The order to close comes a little later."""
    found = make()
    found.begin()
    found.end(1)
    page.interrupt(1)
    with pytest.raises(Stopped):
        found.begin()
    assert not found.updating and not found.closed
    assert found.close(0.0) is True and found.whole, "nothing was begun"
    found.open(1, 1)
    found.begin()


def test_a_repair_that_an_interruption_overtakes(page):
    """What begins then was built at the older one."""
    found = make()
    page.interrupt(2)
    found.open(5, 1)
    with pytest.raises(Stopped):
        found.begin()
    found.open(5, 2)
    found.begin()


def test_a_process_that_starts_late_begins_with_the_newest_interruption(page):
    page.interrupt(4)
    make().begin()


def test_a_rank_that_waits_for_the_others_is_stopped(of_two):
    found, raised = make(), []

    def begin() -> None:
        try:
            found.begin()
        except Stopped:
            raised.append("stopped")

    thread = threading.Thread(target=begin)
    thread.start()
    of_two.interrupt(1)
    thread.join(LIMIT)
    assert raised == ["stopped"] and not found.updating
    assert found.close(0.0) is True and found.whole


def test_a_framework_in_which_not_all_take_part_is_not_held_up_again(of_two, monkeypatch, caplog):
    found = make()
    monkeypatch.setattr(updates, "TOGETHER", 0.001)
    found.begin()
    assert found.updating and "not all ranks of this node began update 1" in caplog.text
    found.end(1)
    monkeypatch.setattr(updates, "TOGETHER", LIMIT)
    found.begin()  # without a wait
    found.end(2)
    assert found.step == 2


# -- memory ----------------------------------------------------------------------------------------


def test_memory_that_was_lost_keeps_it_from_beginning(page, lose):
    found = make()
    found.begin()
    found.end(1)
    lose()
    with pytest.raises(RuntimeError, match="UCE ERROR"):
        found.begin()
    assert not found.updating
    assert found.close(0.0) is True and not found.whole


def test_memory_that_is_lost_during_an_update(page, lose):
    """The update ends, and its result is not whole."""
    found = make()
    found.begin()
    lose()
    with pytest.raises(RuntimeError, match="UCE ERROR"):
        found.end(1)
    assert (found.step, found.updating, found.whole) == (1, False, False)


def test_memory_that_was_lost_and_restored_counts_no_more(page, lose):
    found = make()
    lose()
    found.close(0.0)
    assert found.lost and not found.whole
    found.open(3, 0)
    assert not found.lost and found.whole
    found.begin()
    lose()
    with pytest.raises(RuntimeError, match="UCE ERROR"):
        found.end(4)


def test_what_was_lost_before_the_rank_was_made_is_not_its(page, lose):
    lose()
    make().begin()


# -- messages that broke off -----------------------------------------------------------------------


@pytest.fixture
def tear(damage) -> Callable[[], None]:
    def now() -> None:
        damage.torn = True

    return now


def test_no_update_begins_with_what_a_torn_message_gave(page, tear):
    found = make()
    found.begin()
    found.end(1)
    tear()
    with pytest.raises(RuntimeError, match="^SUSPECT REMOTE ERROR: .*must not be used"):
        found.begin()
    assert (found.step, found.updating, found.whole) == (1, False, True)
    found.close(LIMIT)
    with pytest.raises(Stopped):  # a repair is under way: no fault of its own
        found.begin()


def test_an_update_during_which_a_message_was_torn_is_not_whole(page, tear):
    found = make()
    found.begin()
    tear()
    found.end(1)
    assert (found.step, found.whole) == (1, False)

"""Which ranks make no progress, by the times in their state pages."""

from __future__ import annotations

import pytest

from taskd.agent.ranks.watchdog import HangLimits, Watchdog
from taskd.cython_api import slot
from taskd.cython_api.page import View

NOW = 1000.0


def view(phase: int, heartbeat: float = NOW, usual: float = 0.02, until: float = 0.0) -> View:
    ns = 1_000_000_000
    return View(
        rank=0,
        pid=1,
        incarnation=0,
        attached=True,
        step=5,
        phase=phase,
        heartbeat_ns=int(heartbeat * ns),
        started=6,
        interruption=0,
        consistent=True,
        usual_ns=int(usual * ns),
        until_ns=int(until * ns),
    )


@pytest.mark.parametrize(
    ("seen", "limit"),
    [
        (view(slot.COMPUTING), 2.0),
        (view(slot.UPDATING), 2.0),
        (view(slot.FETCHING), 2.0),
        (view(slot.COMPUTING, usual=10.0), 30.0),
        (view(slot.COMPUTING, usual=0.0), 600.0),  # a first step
        (view(slot.COMMITTED), 600.0),
        (view(slot.SETUP), None),
        (view(slot.INTERRUPTED), None),
        (view(slot.DONE), None),
    ],
)
def test_limits(seen, limit):
    watchdog = Watchdog()
    assert watchdog.limit(seen) == limit
    assert watchdog.due(seen) == (None if limit is None else NOW + limit)
    if limit is not None:
        assert not watchdog.overdue(seen, NOW + limit - 0.001) and watchdog.overdue(
            seen, NOW + limit
        )
    assert Watchdog(HangLimits(least=None)).limit(seen) is None


def test_a_stopped_rank_is_in_no_first_step():
    assert Watchdog().due(view(slot.COMPUTING, usual=0.0), stopped=True) == NOW + 2
    assert Watchdog().due(view(slot.COMMITTED), stopped=True) == NOW + 2
    assert Watchdog().due(view(slot.INTERRUPTED), stopped=True) is None
    assert Watchdog().due(view(slot.COMPUTING, until=NOW + 50), stopped=True) == NOW + 50


def test_an_announced_operation_is_waited_for():
    seen = view(slot.COMPUTING, until=NOW + 50)
    assert Watchdog().due(seen) == NOW + 50
    assert Watchdog().left(seen, NOW + 49) == 1


def test_who_is_held_must_go_on_when_the_hold_is_over():
    watchdog, seen = Watchdog(), view(slot.PAUSED)
    watchdog.holding = True
    assert watchdog.waiting(seen) and not watchdog.overdue(seen, NOW + 3600)
    watchdog.holding = False
    watchdog.excuse(NOW + 3600)
    assert not watchdog.waiting(seen)
    assert watchdog.due(seen) == NOW + 3602  # from when it was told


def test_silence_while_the_machine_stood_still_is_excused():
    watchdog, seen = Watchdog(), view(slot.COMPUTING)
    watchdog.excuse(NOW + 100)
    assert watchdog.silence(seen, NOW + 101) == 1 and not watchdog.overdue(seen, NOW + 101)


def test_a_rank_is_complained_of_again_but_not_at_once():
    watchdog = Watchdog()
    views = {
        0: view(slot.COMPUTING),
        1: view(slot.COMPUTING, heartbeat=NOW + 1),
        2: view(slot.INTERRUPTED),
    }
    assert watchdog.complaints(views, NOW + 1) == ([], NOW + 2)
    assert watchdog.complaints(views, NOW + 2) == ([0], NOW + 3)
    assert watchdog.complaints(views, NOW + 2.5) == ([], NOW + 3)
    assert watchdog.complaints(views, NOW + 3) == ([1], NOW + 4)
    assert watchdog.complaints(views, NOW + 4) == ([0], NOW + 5)
    moved = {0: view(slot.COMPUTING, heartbeat=NOW + 4.5)}
    assert watchdog.complaints(moved, NOW + 5) == ([], NOW + 6.5)
    assert watchdog.complaints(moved, NOW + 6.5) == ([0], NOW + 8.5)


@pytest.mark.parametrize(
    ("seen", "idle"),
    [
        (view(slot.COMPUTING), 5.0),
        (view(slot.UPDATING), 5.0),
        (view(slot.FETCHING), 5.0),
        (view(slot.INTERRUPTED), 5.0),  # its collective has failed
        (view(slot.COMPUTING, usual=6.0), 0.0),
        (view(slot.COMPUTING, usual=0.0), 0.0),  # a first step
        (view(slot.COMPUTING, until=NOW + 60), 0.0),  # it has announced that it takes long
        (view(slot.COMMITTED), 0.0),  # an evaluation, perhaps
        (view(slot.PAUSED), None),
        (view(slot.DONE), None),
        (view(slot.SETUP), None),
    ],
)
def test_how_long_a_rank_has_stood_still(seen, idle):
    assert Watchdog().idle(seen, NOW + 5) == idle

"""The state is saved periodically while the job trains."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from taskd.core.events import StepsWaited
from taskd.core.requests.intervals import Intervals
from taskd.core.settings import Settings
from taskd.settings import BadSetting, dump_every


def of(**settings):
    job = SimpleNamespace(settings=Settings(1, 2, **settings), protected=True)
    saved = []
    return Intervals(job, SimpleNamespace(save=lambda why, now: saved.append((why, now)))), saved


def test_by_time_once_the_ranks_train():
    intervals, saved = of(save_seconds=60.0)
    intervals._job.protected = False
    intervals.follow_up(0.0)
    assert intervals.deadline is None
    intervals._job.protected = True
    intervals.follow_up(10.0)
    assert intervals.deadline == 70.0
    intervals.tick(69.0)
    intervals.tick(70.0)
    intervals.follow_up(71.0)
    assert saved == [("the state is saved every 60 s", 70.0)] and intervals.deadline == 130.0
    intervals.drop("all ranks are restarted")
    assert intervals.deadline is None


def stepped(intervals, *steps):
    before = steps[0]
    for now, step in enumerate(steps[1:]):
        intervals.stepped(StepsWaited((0, 1), before, step, 1.0, (0.0, 0.0)), now)
        before = step


def test_by_steps():
    intervals, saved = of(save_steps=100)
    stepped(intervals, 3, 99, 130, 170, 230, 460)
    assert [now for _, now in saved] == [1, 3, 4]
    stepped(intervals, 420, 480, 499)  # the ranks were taken back
    assert len(saved) == 3


def test_by_steps_once_whichever_node_tells_first():
    intervals, saved = of(save_steps=1000)
    for before, step in ((990, 1005), (992, 1006), (995, 1007), (1998, 2003), (1990, 1999)):
        intervals.stepped(StepsWaited((0,), before, step, 1.0, (0.0,)), 0.0)
    assert len(saved) == 2


def test_never():
    intervals, saved = of()
    intervals.follow_up(1.0)
    intervals.tick(1e9)
    stepped(intervals, 0, 10**6)
    assert not saved and intervals.deadline is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("30min", (1800.0, None)),
        ("1.5h", (5400.0, None)),
        ("90s", (90.0, None)),
        ("1000steps", (None, 1000)),
        ("off", (None, None)),
        ("", (None, None)),
    ],
)
def test_what_is_allowed(text, value):
    assert dump_every({"TASKD_DUMP_EVERY": text}) == value


@pytest.mark.parametrize(
    "text", ["30", "3weeks", "-1s", "0s", "0.9s", "steps", "0steps", "1e3s", "nans"]
)
def test_what_is_refused(text):
    with pytest.raises(BadSetting, match="30min or 1000steps"):
        dump_every({"TASKD_DUMP_EVERY": text})

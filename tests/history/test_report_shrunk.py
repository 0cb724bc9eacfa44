"""What the report says of the time in which ranks were away."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from taskd.history.report import words
from taskd.history.report.plain import plain
from taskd.history.report.table import render
from tests.history.journals import END, SHRUNK, STORY, progress, told


def test_what_it_cost_that_ranks_were_away():
    account = told([*SHRUNK, END])
    # half of 90 s without the pause, and two thirds of 190 s without the incident
    assert account.shrunk_seconds == pytest.approx(45.0 + 190.0 * 2 / 3)
    assert account.shrunk == (
        (300.0, 340.0, 0.5),
        (350.0, 400.0, 0.5),
        (400.0, 590.0, pytest.approx(2 / 3)),
    )
    assert account.goodput == pytest.approx(1 - (20.0 + 10.0 + account.shrunk_seconds) / 1000)
    bins = dict(account.bins)
    assert bins[max(at for at in bins if at <= 320.0)] == pytest.approx(0.5)
    assert bins[max(at for at in bins if at <= 500.0)] == pytest.approx(1 / 3)
    assert bins[max(at for at in bins if at <= 700.0)] == 1.0
    said = plain(account)
    assert said["shrunk"] == [
        {"began": 300.0, "seconds": 100.0, "ranks": 4, "of": 6, "shares": 2, "away": [[2, 3, 1]]},
        {"began": 400.0, "seconds": 200.0, "ranks": 2, "of": 6, "shares": 3, "away": [[2, 5, 1]]},
    ]
    assert said["shrunk_seconds"] == pytest.approx(171.666667)


def test_growth_is_no_fault():
    account = told([*SHRUNK, END])
    assert account.growth == 1 and account.mtbf == 1000.0
    assert [(c.name, c.incidents) for c in account.nodes] == [("node 1 (10.0.0.2)", (1,))]
    assert {c.name for c in account.causes} == {"node lost", "came back"}
    # without a fault nobody would have restarted
    assert [c.restart_from_checkpoint_seconds is None for c in account.costs] == [False, True]
    assert words.first(account) == (
        "Ended well at step 30, 1970-01-01 00:18:20 UTC: every node ended well."
        " 2 incidents (1 brought nodes back) in 16 min 50 s cost 20.0 s."
        " For 5 min, at least 2 of 6 ranks trained, which cost 2 min 52 s."
        " The cause of the other: node lost on node 1 (10.0.0.2)."
    )


def test_ranks_that_are_away_now():
    text = words.first(told([*SHRUNK[:-2], progress(500.0, 100)]))
    assert "For 3 min 20 s, at least 2 of 6 ranks trained, which cost" in text
    assert "Ranks 2-5 have been away since 1970-01-01 00:06:40 UTC." in text
    console = Console(file=io.StringIO(), width=110, highlight=False)
    console.print(render(told([*SHRUNK, END])))
    text = console.file.getvalue()
    for part in ("shrunk since", "4 of 6", "up to 3 x", "ranks 2-5", "01-01 00:05:00"):
        assert part in text, text
    assert "shrunk" not in words.first(told([*STORY, END]))

"""What the live status shows on a screen of some size, and what its keys do."""

from __future__ import annotations

import random

import pytest

from taskd.history.status.model import of_manager
from taskd.history.status.screen import View, matches, screen
from taskd.messages.to_operator import RANK_STATES, IncidentSeen, Overview, RankSeen

FAULT = "rank 2: no progress for 2.7 s in step 138 (computing, stopped by a signal) while all wait"


def incident(number, **changes):
    fields = {
        "incident": number, "began": 100.0 * number, "seconds": 3.1,
        "strategy": "recover-in-place", "result": "repaired", "phase": "", "round": 1, "step": 7,
        "reached": 8, "ranks": (2,), "replaced": 1, "faults": (FAULT,), "more": 1,
        "phases": {"INTERRUPT": 0.1, "REPLACE": 3.0},
    }  # fmt: skip
    return IncidentSeen(**{**fields, **changes})


def job(ranks, listed, incidents=(), **changes):
    listed, incidents = tuple(listed), tuple(incidents)
    fields = {
        "request": "", "job": "llm-7b", "time": 1000.0, "state": "training",
        "detail": "training, protected", "nodes": -(-ranks // 8), "ranks": ranks, "generation": 3,
        "term": 1, "repairs": True, "step": 120, "highest": 121, "total": 480, "rate": 30.0,
        "usual": 2.0, "heard": 2.0, "phases": {"computing": ranks}, "listed": listed,
        "troubled": (), "troubles": 0, "standbys": 0, "incidents": incidents,
        "incidents_seen": len(incidents), "came": 997.0,
        "unwell": sum(r.state != "well" for r in listed),
    }  # fmt: skip
    return of_manager("10.0.0.1:9601", Overview(**{**fields, **changes}))


def rank(number, state="well", why=""):
    return RankSeen(
        number, number // 8, 120, "computing", 2.0, False, state, why, "a", 100 + number
    )


def lines(model, view=View(), width=80, height=24):  # immutable
    found, after = screen(model, view, width, height)
    assert len(found) <= height
    return [text.plain for text in found], after


def pressed(*keys):
    view = View()
    for key in keys:
        view = view.key(key)
    return view


def test_the_incident_under_way_is_on_top_and_readable_on_a_small_screen():
    now = incident(9, result="under way", phase="REPLACE", began=990.0)
    model = job(8, map(rank, range(8)), [*map(incident, range(1, 9)), now], state="repairing")
    shown, _ = lines(model)
    assert shown[2].startswith("INCIDENT 9 for 3.1 s: rank 2: no progress")
    assert FAULT in " ".join(line.strip() for line in shown[2:5])
    assert max(map(len, shown[2:6])) <= 80
    assert any("REPLACE for 3.0 s" in line for line in shown[:6])
    assert sum("incident" in line for line in shown[6:-1]) <= 3


@pytest.mark.parametrize("state", [s for s in RANK_STATES if s != "well"])
def test_what_is_not_well_comes_first_and_has_a_color(state):
    model = job(8, [rank(n, state if n == 6 else "well", "for a reason") for n in range(8)])
    found, _ = screen(model, View(), 80, 24)
    row = next(text for text in found if text.plain.lstrip().startswith("6"))
    header = next(at for at, text in enumerate(found) if text.plain.startswith("rank  state"))
    assert found.index(row) == header + 1 and row.style
    assert "for a reason" in found[header + 2].plain


def test_no_alarm_while_all_is_well():
    found, _ = screen(job(8, map(rank, range(8)), map(incident, (1, 2))), View(), 80, 24)
    styles = {str(span.style) for text in found for span in text.spans}
    styles |= {str(text.style) for text in found}
    assert not any(color in style for style in styles for color in ("red", "yellow"))


def test_a_large_job_shows_who_is_not_well_and_pages_through_all_on_request():
    model = job(1000, [rank(77, "slow", "others wait"), rank(500, "dead")])
    shown, _ = lines(model)
    assert any(line.split()[:2] == ["500", "dead"] for line in shown)
    assert "the other 998 ranks are well" in shown
    view = pressed("a")
    assert view.wants_all
    everybody = job(1000, map(rank, range(1000)))
    seen = set()
    for _ in range(200):
        shown, after = lines(everybody, view)
        seen |= {line.split()[0] for line in shown if line[:4].strip().isdigit()}
        further = after.key(" ")
        if lines(everybody, further)[1] == after:
            break
        view = further
    assert seen == {str(n) for n in range(1000)}
    assert lines(everybody, after.key("b"))[1].page == after.page - 1


def test_a_filter():
    view = pressed("/", *"dead a", "enter")
    assert (view.words, view.typing, view.wants_all) == ("dead a", False, True)
    model = job(40, [rank(n, "dead" if n == 33 else "well") for n in range(40)])
    shown, _ = lines(model, view)
    assert [line.split()[0] for line in shown if line[:4].strip().isdigit()] == ["33"]
    assert "Esc clears it" in shown[-1] and lines(model, pressed("/", *"x"))[0][-1].startswith(
        "fil"
    )
    assert "no rank has 'nope'" in lines(model, pressed("/", *"nope"))[0]
    assert pressed("/", *"dead", "delete", "escape") == View(page=0)
    assert matches(rank(7), "rank7 node0 107") and not matches(rank(7), "rank8")


def test_the_incidents():
    model = job(8, map(rank, range(8)), [incident(n) for n in range(1, 10)])
    shown, _ = lines(model, pressed("i"))
    assert shown[2] == "newest first" and "incident 9" in shown[3]
    assert "page 1 of" in shown[-1] and "incident 9" not in "".join(
        lines(model, pressed("i", " "))[0]
    )
    assert pressed("i", "i") == pressed("i", "escape") == View()


@pytest.mark.parametrize("key", ["q", "\x03"])
def test_the_reader_leaves(key):
    assert pressed(key) is None
    assert View(typing=True).key("q").words == "q" and View(typing=True).key("\x03") is None


def test_any_size_and_any_keys_will_do():
    draw = random.Random(3)
    keys = [*"qaibk/ j\x03xyz", "up", "down", "enter", "escape", "delete"]
    models = [
        job(1000, [rank(n, draw.choice(RANK_STATES), "why " * (n % 30)) for n in range(n)], some)
        for n, some in ((0, []), (32, [incident(1)]), (1000, map(incident, range(1, 50))))
    ]
    view = View()
    for _ in range(200):
        view = view.key(draw.choice(keys)) or View()
        size = draw.randint(1, 250), draw.randint(1, 60)
        _, view = lines(draw.choice(models), view, *size)

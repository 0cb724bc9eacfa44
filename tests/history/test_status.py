"""What `taskd status` shows, by a manager's answer or by the journal, and how it reads."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from taskd.core.coordinator import Coordinator
from taskd.core.job.progress import Progress
from taskd.core.overview import STATES, answer
from taskd.core.rank_states import RankStates
from taskd.core.settings import Settings
from taskd.history.facts import End
from taskd.history.model import of_records
from taskd.history.reading import Record
from taskd.history.status import model as models
from taskd.history.status.model import SHOWN, of_manager
from taskd.history.status.rendering import printable, render
from taskd.messages import codec
from taskd.messages.node_progress import NodeProgress
from taskd.messages.to_operator import (
    AWAY,
    LISTED,
    WORST,
    IncidentSeen,
    NodeSeen,
    Overview,
    Place,
    RankSeen,
    ShrunkSeen,
)


def seen(**changes):
    listed = (
        RankSeen(0, 0, 121, "computing", 2.0, host="a1", pid=70, device="cuda:0"),
        RankSeen(1, 0, 120, "fetching", 3.0, True, "slow", "its steps take long", "a1", 71, 2),
    )
    fields = {
        "request": "", "job": "llm-7b", "time": 1000.0, "state": "training",
        "detail": "training, protected", "nodes": 2, "ranks": 4, "generation": 3, "term": 1,
        "repairs": True, "step": 120, "highest": 121, "total": 480, "rate": 30.0, "usual": 2.0,
        "heard": 2.0, "phases": {"computing": 3, "fetching": 1}, "listed": listed, "troubled": (),
        "troubles": 0, "standbys": 1, "incidents": (), "incidents_seen": 0,
        "came": 997.0, "unwell": 1,
        "place": Place("a1", 7, 9601, "/logs", "/logs/journal-llm-7b.jsonl"),
    }  # fmt: skip
    return Overview(**{**fields, **changes})


def incident(number=1, **changes):
    fields = {
        "incident": number, "began": 100.0 * number, "seconds": 0.342,
        "strategy": "recover-in-place", "result": "repaired", "phase": "", "round": 0, "step": 77,
        "reached": 78, "ranks": (3,), "replaced": 1, "faults": ("rank 3: killed by [SIGKILL]",),
        "more": 1, "phases": {"INTERRUPT": 0.005, "REPLACE": 0.3},
    }  # fmt: skip
    return IncidentSeen(**{**fields, **changes})


def text(model, width=100):
    console = Console(file=io.StringIO(), width=width, highlight=False, soft_wrap=True)
    for line in render(model, when=lambda t: f"[{t:g}]"):
        console.print(line)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def of_journal(where, records, now):
    return models.of_journal(where, of_records(records, most=SHOWN), now)


def test_a_job_that_trains():
    model = of_manager("10.0.0.1:9601", seen(), [incident()])
    assert not model.over and of_manager("x", seen(state="over")).over
    assert text(model) == (
        """\
job llm-7b  training  2 nodes, 4 ranks, 1 standby, generation 3, term 1
━━━━━━━━━━━━━━━━━━━━ 25%  step 120 to 121 of 480, 30.0 steps/min, 12 min left, 2 s/step
ranks: 3 computing, 1 fetching
rank  state  node  host  pid  device  process  step  phase      s/step
   1  slow      0  a1     71                2   120  fetching        3
      its steps take long
   0  well      0  a1     70  cuda:0        0   121  computing       2
the other 3 ranks are well
[100]  incident 1  recover-in-place  repaired  342.0 ms  step 77, 1 step repeated  replaced: rank 3
    rank 3: killed by [SIGKILL]
    INTERRUPT 5.0  REPLACE 300.0
manager: 10.0.0.1:9601 (port 9601, pid 7 on a1)
logs: /logs
journal: /logs/journal-llm-7b.jsonl"""
    )


def test_an_incident_under_way_and_nodes_that_do_not_run():
    under_way = incident(
        2,
        result="under way",
        phase="REPLACE",
        round=2,
        step=-1,
        ranks=(),
        replaced=0,
        phases={"REPLACE": 0.3},
        faults=("rank 3: killed by [SIGKILL]", "rank 2: it hangs"),
        more=3,
    )
    model = of_manager(
        "10.0.0.1:9601",
        seen(
            state="repairing",
            detail="incident 2 is being repaired: REPLACE by recover, round 2",
            step=-1,
            total=0,
            phases={},
            listed=(),
            unwell=4,
            standbys=0,
            repairs=False,
            troubled=(NodeSeen(1, "lost, waiting for a standby"),),
            troubles=12,
            incidents=(under_way,),
            incidents_seen=1,
            place=None,
        ),
    )
    assert text(model) == (
        """\
job llm-7b  repairing  2 nodes, 4 ranks, generation 3, term 1
INCIDENT 2 for 0.3 s: rank 3: killed by [SIGKILL]
  and rank 2: it hangs
  and 1 fault more
  recover-in-place, REPLACE for 0.3 s, round 2; since [200]
recovery is paused (process-recover-enable): the next fault ends the job
node 1: lost, waiting for a standby
and 11 nodes more that do not run
and 4 ranks more that are not well"""
    )


BEGUN = {"job": "llm-7b", "nodes": 2, "ranks_per_node": 2, "successor": False, "version": 1}
BEGUN |= {"machine": "a1", "pid": 7, "port": 9601}
START = Record("start", 10.0, BEGUN)
PROGRESS = {"step": 5, "highest": 6, "total": 10, "rate": 30.0, "usual": 2.0}
PROGRESS |= {"phases": {"computing": 4}, "slow": [[3, 1, 4.0]]}
STORY = [
    START,
    Record("join", 11.0, {"node": 0}),
    Record("join", 11.0, {"node": 1, "about": {"host": "b2"}}),
    Record(
        "processes",
        12.0,
        {"node": 1, "ranks": [2, 3], "pids": [92, 93], "incarnations": [0, 1], "devices": []},
    ),
    Record("charge", 11.0, {"term": 4}),
    Record("protected", 20.0, {"generation": 1}),
    Record("progress", 30.0, PROGRESS),
    Record("fault", 40.0, {"incident": 1, "began": 39.0, "text": "rank 1: killed by SIGKILL"}),
    Record("phase", 40.0, {"incident": 1, "round": 1, "strategy": "retry", "phase": "INTERRUPT"}),
    Record("phase", 40.5, {"incident": 1, "round": 1, "strategy": "retry", "phase": "DECIDE"}),
]
OVER_DATA = {
    "incident": 1, "began": 39.0, "seconds": 2.0, "strategy": "retry", "result": "repaired",
    "step": 6, "reached": 6, "ranks": [], "faults": ["rank 1: killed by SIGKILL"],
    "phases": {"INTERRUPT": 0.5},
}  # fmt: skip
OVER = Record("incident", 41.0, OVER_DATA)
END = Record("end", 50.0, {"ok": True, "reason": "every node ended well"})


def test_a_job_whose_manager_was_killed_in_a_repair():
    model = of_journal("/log/journal-llm-7b.jsonl", STORY, 41.5)
    assert (model.seen.state, model.age, model.seen.term) == ("silent", 1.0, 4)
    assert text(model) == (
        """\
job llm-7b  silent  2 nodes, 4 ranks, term 4
from /log/journal-llm-7b.jsonl, last written 1.0 s ago
━━━━━━━━━━━━━━━━━━━━ 50%  step 5 to 6 of 10, 2 s/step
ranks: 4 computing
no manager answers; by its last entry incident 1 was being repaired: DECIDE
INCIDENT 1 for 1.5 s: rank 1: killed by SIGKILL
  retry, DECIDE for 0.0 s; since [39]
rank  state  node  host  pid  process  step  phase  s/step
   3  slow      1  b2     93        1                    4
      its steps take 2.00 times as long
   2  well      1  b2     92        0                    2
last manager: port 9601, pid 7 on a1
logs: /log
journal: /log/journal-llm-7b.jsonl"""
    )


def test_a_job_that_has_ended():
    model = of_journal("/log/journal-llm-7b.jsonl", [*STORY, OVER, END], 3650.0)
    assert model.end == End(True, "every node ended well", 50.0) and model.over
    assert text(model) == (
        """\
job llm-7b  over  2 nodes, 4 ranks, term 4
from /log/journal-llm-7b.jsonl, last written 1 h 0 min ago
[50]  ended well: every node ended well
━━━━━━━━━━━━━━━━━━━━ 50%  step 5 to 6 of 10, 2 s/step
[39]  incident 1  retry  repaired  2,000.0 ms  step 6, 0 steps repeated
    rank 1: killed by SIGKILL
    INTERRUPT 500.0
last manager: port 9601, pid 7 on a1
logs: /log
journal: /log/journal-llm-7b.jsonl"""
    )


@pytest.mark.parametrize(
    ("more", "state", "detail"),
    [
        ([], "silent", "by its last entry it was starting"),
        ([STORY[5]], "silent", "it was training"),
        ([STORY[5], Record("pause", 2.0, {"step": 9})], "silent", "paused before step 9"),
        (
            [STORY[5], Record("pause", 2.0, {"step": 9}), Record("continue", 3.0)],
            "silent",
            "it was training",
        ),
        ([STORY[5], Record("restart", 5.0, {"why": "x"})], "silent", "it was starting"),
        ([STORY[5], Record("leave", 5.0, {"why": "SIGTERM"})], "silent", "left: SIGTERM"),
        (
            [STORY[5], Record("end", 5.0, {"ok": False, "reason": "no"})],
            "over",
            "with an error: no",
        ),
        ([*STORY[5:], OVER], "silent", "it was training"),
        # the next manager opens an incident of its own for what it finds
        (
            [*STORY[5:], Record("start", 42.0, {**START.data, "successor": True})],
            "silent",
            "it was training",
        ),
    ],
)
def test_the_state_that_the_journal_tells(more, state, detail):
    model = of_journal("x", [START, *more], 60.0)
    assert model.seen.state == state and detail in model.seen.detail, model.seen.detail
    assert model.over == (state == "over")


def test_nodes_that_are_lost_or_missing_by_the_journal():
    lost = Record("lost", 5.0, {"node": 1, "why": "its process has ended"})
    model = of_journal("x", [*STORY[:3], lost], 60.0)
    assert [(n.node, n.state) for n in model.seen.troubled] == [(1, "lost: its process has ended")]
    model = of_journal("x", [START, STORY[1]], 60.0)
    assert [(n.node, n.state) for n in model.seen.troubled] == [(1, "has not joined")]
    back = Record("join", 6.0, {"node": 1})
    assert of_journal("x", [*STORY[:3], lost, back], 60.0).seen.troubles == 0


def shrunk(**changes):
    fields = {
        "ranks": 6, "of": 8, "since": 500.0, "shares": 2, "away": ((6, 7, 1),), "waiting": (3,),
        "waits": 1, "preparing": (),
    }  # fmt: skip
    return ShrunkSeen(**{**fields, **changes})


ELASTIC = {"ranks": 2, "of": 4, "away": [[2, 3, 1]], "shares": 2, "successor": False}
LOST = Record("lost", 38.0, {"node": 1, "why": "its process has ended"})
ALONE = [*STORY[:7], LOST, Record("elastic", 42.0, ELASTIC)]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {},
            "shrunk: 6 of 8 ranks train since [500], a step takes up to 2 times as long;"
            " ranks 6-7 are away; waiting for a standby for node 3",
        ),
        # what only an earlier manager knows; a lane of ranks that are far apart
        (
            {"since": 0.0, "shares": 0, "away": ((3, 7, 4),), "waiting": (1, 3), "waits": 12},
            "shrunk: 6 of 8 ranks train; ranks 3-7 by 4 are away;"
            " waiting for standbys for nodes 1, 3 and 10 more",
        ),
        (
            {"ranks": 7, "away": ((7, 7, 1),), "waits": 0, "waiting": (), "shares": 1,
             "preparing": ((3, "9b2e6a10ffff"),)},
            "shrunk: 7 of 8 ranks train since [500], a step takes up to 1 time as long;"
            " rank 7 is away; standby 9b2e6a10 is being prepared for node 3",
        ),
    ],
)  # fmt: skip
def test_a_job_whose_ranks_are_away(changes, line):
    away = (NodeSeen(3, AWAY),)
    model = of_manager("x", seen(shrunk=shrunk(**changes), troubled=away, troubles=1))
    lines = text(model).splitlines()
    assert line in lines and f"node 3: {AWAY}" in lines
    assert line not in text(of_manager("x", seen(state="over", shrunk=shrunk(**changes))))
    assert json.loads(json.dumps(model.plain))["shrunk"]["ranks"] == shrunk(**changes).ranks


def test_a_job_whose_ranks_are_away_by_the_journal():
    model = of_journal("x", ALONE, 60.0)
    assert (
        "shrunk: 2 of 4 ranks train since [42], a step takes up to 2 times as long;"
        " ranks 2-3 are away; waiting for a standby for node 1\n" in text(model)
    )
    assert [(n.node, n.state) for n in model.seen.troubled] == [(1, AWAY)]
    assert model.seen.ranks == 4
    prepare = Record("prepare", 43.0, {"node": 1, "agent": "9b2e6a10", "why": "it comes back"})
    preparing = of_journal("x", [*ALONE, prepare], 60.0).seen.shrunk
    assert (preparing.waits, preparing.preparing) == (0, ((1, "9b2e6a10"),))
    down = Record("stand-down", 44.0, {"node": 1, "agent": "9b2e6a10", "why": "rank 0 died"})
    assert of_journal("x", [*ALONE, prepare, down], 60.0).seen.shrunk.waiting == (1,)
    back = Record("elastic", 50.0, {**ELASTIC, "ranks": 4, "away": [], "shares": 1})
    again = [*ALONE, prepare, Record("join", 49.0, {"node": 1}), back]
    assert of_journal("x", again, 60.0).seen.shrunk is None
    assert of_journal("x", again, 60.0).seen.troubles == 0


def test_a_rank_that_is_away_leaves_its_node_in_the_job():
    one = Record("elastic", 42.0, {**ELASTIC, "ranks": 3, "away": [[3, 3, 1]]})
    assert of_journal("x", [*STORY[:7], one], 60.0).seen.troubles == 0


def test_since_when_is_known_by_the_journal_where_the_manager_is_new():
    known = shrunk(since=400.0)
    since = of_manager("x", seen(shrunk=shrunk(since=0.0)), (), known).seen.shrunk.since
    assert since == 400.0
    # fewer train by now, or the manager knows itself
    fewer = shrunk(since=0.0, ranks=4, away=((4, 7, 1),))
    assert of_manager("x", seen(shrunk=fewer), (), known).seen.shrunk.since == 0.0
    assert of_manager("x", seen(shrunk=shrunk()), (), known).seen.shrunk.since == 500.0


WRONG = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.just([1]),
    st.just({"a": "b"}),
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_no_field_of_another_type_stops_the_reader(data):
    """A journal of a newer taskd, or one that was edited."""
    records = []
    for record in [*STORY, *ALONE[-2:], OVER, END]:
        fields = dict(record.data)
        for name in data.draw(st.sets(st.sampled_from(sorted(fields)))) if fields else ():
            fields[name] = data.draw(WRONG)
        records.append(Record(record.kind, record.time, fields))
    model = of_journal("x", data.draw(st.permutations(records)), 60.0)
    text(model)
    json.dumps(model.plain)


def test_incidents_of_earlier_managers_are_added_once():
    before = [incident(1), incident(2), incident(3, result="under way")]
    model = of_manager("x", seen(incidents=(incident(2), incident(3)), incidents_seen=2), before)
    assert [i.incident for i in model.incidents] == [1, 2, 3] and model.more == 3
    assert model.incidents[-1].result == "repaired"


def test_json_has_what_is_shown():
    plain = of_manager("10.0.0.1:9601", seen(), [incident()]).plain
    assert json.loads(json.dumps(plain)) == plain
    assert (plain["source"], plain["where"], plain["end"]) == ("manager", "10.0.0.1:9601", None)
    assert plain["listed"][1]["slow"] is True and plain["incidents"][0]["step"] == 77
    assert "request" not in plain and "type" not in plain
    over = of_journal("x", [*STORY, OVER, END], 60.0).plain
    assert over.keys() == plain.keys()
    words = {"reason": "every node ended well", "ending": ""}
    assert over["end"] == {"ok": True, "time": 50.0, **words}
    assert over["state"] in STATES


def test_texts_from_nodes_do_not_control_the_terminal():
    evil = "\x1b[2J[bold]x[/bold]\r\n\x9b1m\u202e"
    model = of_manager(
        "x",
        seen(
            job=evil,
            detail=evil,
            troubled=(NodeSeen(1, evil),),
            troubles=1,
            phases={evil: 1},
            listed=(RankSeen(0, 0, 1, evil, 1.0),),
            incidents=(incident(faults=(evil,), strategy=evil, result=evil, phases={evil: 1.0}),),
        ),
    )
    shown = text(model)
    assert "[bold]x[/bold]" in shown  # no markup
    assert not set(shown) & set("\x1b\x9b\r\u202e")
    assert printable("\x07ä€\t") == "�ä€�"


def test_ten_thousand_ranks_stay_readable():
    job = Coordinator(Settings(1250, 8))
    progress = Progress()
    for node in range(1250):
        ranks = tuple(range(8 * node, 8 * node + 8))
        job.job.topology.join(node, ranks, ("", 0), 0)
        usual = 5_000_000 if node == 700 else 1_000_000
        progress.heard(node, ranks, NodeProgress((9,) * 8, b"\1" * 8, (usual,) * 8, 10), 0.0)
    for node in range(10, 30):
        job.job.topology.nodes[node].lost = True
    states = RankStates(job, progress, [], 5.0, 1000.0, lambda node: f"host-{node}")
    said = answer("job", "r", states, Place("a", 1, 2, "/logs", "/logs/j"))
    assert len(codec.encode(said)) < 8000
    assert codec.TO_OPERATOR.decode(codec.encode(said)) == said
    assert len(said.troubled) == WORST and said.troubles == 20
    assert len(said.listed) == LISTED and {r.state for r in said.listed} == {"slow", "lost"}
    assert {r.node for r in said.listed if r.state == "slow"} == {700}
    model = of_manager("x", said)
    lines = text(model).splitlines()
    assert "and 136 ranks more that are not well" in lines
    assert "the other 9,832 ranks are well" in lines and max(map(len, lines)) <= 100
    page = states.page(5600, 5000)
    assert [r.rank for r in page] == list(range(5600, 6600))
    assert page[0].host == "host-700" and page[0].state == "slow" and page[8].state == "well"
    assert [r.rank for r in states.page(9_990, 1000)] == list(range(9_990, 10_000))


@pytest.mark.parametrize("width", [20, 40, 200])
def test_any_width_will_do(width):
    assert "recover-in-place" in text(of_manager("x", seen(), [incident()]), width)


def documented(header):
    """The names in the first column of a table of operations.md."""
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    table = page.partition(f"| {header} | |\n|---|---|\n")[2].partition("\n\n")[0]
    return {
        name for row in table.splitlines() for name in re.findall("`(\\w+)`", row.split("|")[1])
    }


def test_json_is_as_documented():
    plain = of_manager("10.0.0.1:9601", seen(), [incident()]).plain
    assert documented("Field") == plain.keys()
    assert documented("Field of a rank") == plain["listed"][0].keys()

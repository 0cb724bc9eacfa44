"""The figures of a report, by journals whose figures can be worked out by hand, and what holds for
any journal."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from taskd.history import model
from taskd.history.reading import Reader, Record
from taskd.history.report import figures, words
from taskd.history.report.account import Now, assumptions, of_job, read
from taskd.history.report.causes import fault, to_blame
from taskd.history.report.page import data as page_data
from taskd.history.report.plain import plain
from taskd.history.report.table import render
from taskd.history.report.trace import trace
from tests.history.journals import (
    BEGIN,
    DEATH,
    END,
    KILLED,
    SHRUNK,
    STORY,
    incident,
    join,
    progress,
    record,
    start,
    times,
    told,
)


def test_what_it_cost():
    account = told([*STORY, END])
    assert account.span == (100.0, 1100.0)
    # 4 s and three steps of 2 s; 2 s; from 610 until step 200 is reached at 650
    assert [c.lost_seconds for c in account.costs] == pytest.approx([10.0, 2.0, 40.0])
    assert [c.steps_repeated for c in account.costs] == [3, 0, 10]
    assert [c.steps_repeated_at_least for c in account.costs] == [False, False, True]
    assert account.lost == ((200.0, 210.0), (500.0, 502.0), (610.0, 650.0))
    assert (account.lost_seconds, account.paused_seconds) == pytest.approx((52.0, 20.0))
    assert account.goodput == pytest.approx(1 - 72 / 1000)
    assert account.start == 10.0


def test_the_time_to_repair_and_between_incidents():
    account = told([*STORY, END])
    assert account.mttr is not None
    # the restart is no repair
    assert (account.mttr.repairs, account.mttr.mean, account.mttr.median) == (2, 3.0, 3.0)
    assert (account.mttr.p95, account.mttr.max) == (4.0, 4.0)
    assert account.mttr.phases == {"INTERRUPT": 0.5, "REPLACE": 1.0, "RESUME": 1.25}
    assert {name: t.mean for name, t in account.strategies.items()} == {
        "recover-in-place": 4.0,
        "retry": 2.0,
    }
    assert account.mtbf == pytest.approx(1000 / 3)


def test_who_is_to_blame():
    account = told([*STORY, END])
    # the collective that failed because rank 3 had died is nobody's fault
    assert [(c.name, c.incidents) for c in account.nodes] == [("node 1 (10.0.0.2)", (1, 2, 3))]
    assert [(c.name, len(c.incidents)) for c in account.devices] == [
        ("node 1, device 1 (rank 3)", 1),
        ("node 1, device 0 (rank 2)", 1),
    ]
    assert {c.name: c.mtbf_seconds for c in account.causes} == {
        "node lost": 1000.0,
        "killed by SIGKILL": 1000.0,
        "device: RestartBusiness": 1000.0,
    }
    assert [(c.name, c.lost_seconds) for c in account.codes] == [("80E01801", 2.0)]
    assert [(s.rank, s.node, s.ratio, s.seen) for s in account.slow] == [
        (5, 2, 2.0, 2),
        (1, 0, 1.3, 1),
    ]


def test_against_restarts_from_a_checkpoint():
    account = told([*STORY, END], every=40, steps=True, restart=60.0)
    # steps since the last checkpoint: 50 - 40, 150 - 120, 200 - 200, of 2 s each
    assert [c.restart_from_checkpoint_seconds for c in account.costs] == pytest.approx(
        [80.0, 120.0, 60.0]
    )
    account = told([*STORY, END], every=150.0, restart=60.0)
    # seconds of training since then: 100, 400 - 300, 510 - 450
    assert [c.restart_from_checkpoint_seconds for c in account.costs] == pytest.approx(
        [160.0, 160.0, 120.0]
    )
    assert account.checkpoint == pytest.approx((52.0, 440.0))


def test_what_is_assumed_is_said():
    """A restart takes as long as this job's start; steps that it would repeat are counted only
    where somebody says how often a checkpoint is saved."""
    account = told([*STORY, END])
    assert (account.assumed.every, account.assumed.restart) == (None, 10.0)
    assert {c.restart_from_checkpoint_seconds for c in account.costs} == {10.0}
    assert "10.0 s, as long as this job took to start" in words.assumed(account)
    assert "No repeated step is counted for it" in words.assumed(account)
    # its start is not in what is left of the journal
    account = told([start(repeated=True), *STORY[1:]])
    assert account.assumed.restart is None and words.assumed(account) == ""
    assert "by restarts instead" not in dict(f[:2] for f in words.figures(account))
    assert "every 40 steps" in words.assumed(told(STORY, every=40, steps=True))
    assert "took to start" not in words.assumed(told(STORY, restart=60.0))
    for text in (words.first(account), words.first(told(STORY, every=40, steps=True))):
        assert "restart" not in text.replace("restarted", "")


def test_new_steps_a_minute():
    """Steps that are done once more are not new."""
    rates = told([*STORY, END]).rates
    assert rates[0] == (160.0, 260.0, pytest.approx(27 * 0.6))
    assert {(a, b): r for a, b, r in rates}[600.0, 640.0] == 0.0
    # from 195, which it had been at, to 210
    assert {(a, b): r for a, b, r in rates}[640.0, 660.0] == pytest.approx(15 * 3)


def test_the_goodput_over_time():
    bins = dict(told([*STORY, END]).bins)
    assert bins[90.0] is None  # it was starting
    assert min(good for at, good in bins.items() if good is not None) == 0.0
    assert bins[max(at for at in bins if at <= 205.0)] == 0.0
    assert bins[max(at for at in bins if at <= 800.0)] == 1.0


def test_incidents_that_overlap_are_lost_once():
    account = told(
        [
            *BEGIN,
            incident(1, 200.0, 1.0, KILLED, step=40, reached=60),  # and 40 s of steps
            incident(2, 210.0, 5.0, KILLED, step=42, reached=43),  # and 2 s
            progress(400.0, 100),
        ]
    )
    assert [c.lost_seconds for c in account.costs] == [41.0, 7.0]
    assert account.lost_seconds == 41.0


# -- the first sentences ---------------------------------------------------------------------------


def test_in_words():
    assert words.first(told([*STORY, END], restart=60.0)) == (
        "Ended well at step 430, 1970-01-01 00:18:20 UTC: every node ended well."
        " 3 incidents in 16 min 50 s cost 52.0 s and 13 repeated steps."
        " Node 1 (10.0.0.2) is in all of them."
        " Rank 5 on node 2 was slow: up to 2.00 times the median step."
    )


def test_a_job_without_incidents():
    text = words.first(told([*BEGIN, record("end", 220.0, ok=False, reason="rank 1 raised")]))
    assert text == (
        "Ended with an error at step 30, 1970-01-01 00:03:40 UTC: rank 1 raised."
        " No incident in 2 min 10 s."
    )


def test_a_job_that_runs():
    job = read(BEGIN)
    assert job is not None
    assumed = assumptions(job, None, False, None)
    text = words.first(of_job(job, assumed, Now("training", "", 8120, 41.2)))
    assert text == "Training now at step 8,120, 41.2 steps/min. No incident in 1 min 10 s."
    repairing = Now("repairing", "incident 1 is being repaired: REPLACE", -1, 0.0)
    text = words.first(of_job(job, assumed, repairing))
    assert text.startswith("Now repairing (incident 1 is being repaired: REPLACE).")


def test_a_job_that_was_killed():
    text = words.first(told(STORY[:10]))  # in the middle of the first repair
    assert "Last heard 1970-01-01 00:03:23 UTC, when it was in the repair of an incident" in text
    assert "RESUME" not in text.partition("1 incident")[2] and "no end" in text
    (cut,) = told(STORY[:10]).job.incidents
    assert (cut.result, cut.seconds, cut.ranks) == ("not over", 3.0, [])
    assert cut.phases == {"DETECT": 0.5, "INTERRUPT": 0.5, "REPLACE": 2.0, "RESUME": 0.0}
    left = [*BEGIN, record("leave", 170.0, why="SIGTERM was received; the job continues")]
    assert "its manager had left: SIGTERM was received" in words.first(told(left))


def test_a_job_that_was_never_protected():
    account = told([start(), record("progress", 95.0, step=0, highest=0)])
    assert account.goodput is None and account.lost_seconds == 0
    assert "not every rank has come to its protected loop; no incident" in words.first(account)


def test_one_incident_and_its_cause():
    account = told([*BEGIN, incident(1, 200.0, 0.4, KILLED, step=50, reached=50), END])
    assert "1 incident in 16 min 50 s cost 400 ms" in words.first(account)
    assert words.first(account).endswith("Its cause: killed by SIGKILL on node 1 (10.0.0.2).")


def test_nobody_stands_out():
    faults = [f"rank {rank}: killed by SIGKILL" for rank in (0, 3)]
    records = [incident(n, 200.0 * n, 1.0, f) for n, f in enumerate(faults, 1)]
    text = words.first(told([*BEGIN, *records, END]))
    assert "No node or device stands out; most often: killed by SIGKILL (2 of 2)." in text


# -- journals in any state -------------------------------------------------------------------------


def test_only_the_last_run_counts():
    account = told([*STORY, END, *[Record(r.kind, r.time + 2000, r.data) for r in BEGIN]])
    assert not account.job.incidents and account.job.end is None
    assert account.job.began == 2090.0


def test_the_next_manager_takes_an_incident_over():
    account = told([*STORY[:8], start(202.0, successor=True), *STORY[11:]])
    # the one that was under way has no end, and the next manager has its own
    assert [i.result for i in account.job.incidents][:2] == ["not over", "repaired"]
    assert account.job.managers == 2 and len(account.job.incidents) == 4


def test_the_oldest_files_are_gone():
    account = told([start(150.0, repeated=True), *STORY[6:], END])
    assert account.start is None and account.span == (150.0, 1100.0)
    assert plain(account)["complete"] is False


def test_another_machine_in_the_place_of_a_node_counts_on_its_own():
    records = [
        *BEGIN,
        incident(1, 200.0, 1.0, KILLED),
        join(1, "10.0.0.9", 250.0),
        incident(2, 300.0, 1.0, KILLED),
        END,
    ]
    assert {c.name for c in told(records).nodes} == {"node 1 (10.0.0.2)", "node 1 (10.0.0.9)"}


# every field of every record above, and some that only other journals have
FIELDS = sorted(
    {name for r in [*STORY, *SHRUNK, END, DEATH, times(1.0)] for name in r.data}
    | {"lost", "device", "code", "by", "about", "settings"}
)
values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 10**30),
    st.floats(allow_nan=False),
    st.text(max_size=8),
    st.lists(st.one_of(st.none(), st.integers(-5, 99), st.floats(), st.text(max_size=3))),
    st.dictionaries(st.sampled_from(["RESUME", "ranks", "last"]), st.integers(-5, 99)),
)
entries = st.builds(
    Record,
    st.sampled_from([*model._FOLLOW, *model.SAID, "of another version"]),
    st.one_of(st.floats(0, 10_000), st.floats(allow_nan=False, allow_infinity=False)),
    st.dictionaries(st.sampled_from(FIELDS), values, max_size=6),
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.one_of(entries, st.sampled_from([*STORY, *SHRUNK, END])), min_size=1, max_size=20)
)
def test_any_journal_has_figures(records):
    job = read(records)
    if job is None:  # of no time that there is
        return
    account = _of(job)
    whole = account.span[1] - account.span[0]
    assert all(c.lost_seconds >= 0 and c.steps_repeated >= 0 for c in account.costs)
    assert all((c.restart_from_checkpoint_seconds or 0.0) >= 0 for c in account.costs)
    away = account.shrunk_seconds
    assert 0 <= account.lost_seconds + account.paused_seconds + away <= whole * (1 + 1e-9) + 1e-6
    assert account.goodput is None or 0 <= account.goodput <= 1
    assert all(good is None or 0 <= good <= 1 for _, good in account.bins)
    for data in (plain(account), page_data(account), trace(account)):
        json.dumps(data, allow_nan=False)
    Console(file=io.StringIO(), width=80).print(render(account))


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 50)), max_size=10))
def test_the_phases_are_no_longer_than_the_incidents(lengths):
    incidents = [
        incident(n, 200.0 + 200 * n, a + b, KILLED, phases={"REPLACE": a, "RESUME": b})
        for n, (a, b) in enumerate(lengths)
    ]
    account = told([*BEGIN, *incidents])
    if account.mttr is not None:
        assert sum(account.mttr.phases.values()) <= account.mttr.mean + 1e-6
        assert account.mttr.median <= account.mttr.p95 <= account.mttr.max


def test_torn_and_unknown_lines_change_nothing():
    lines = [json.dumps({"kind": r.kind, "time": r.time, **r.data}).encode() + b"\n" for r in STORY]
    torn = [lines[0], b'{"time": 100.0, "kind": "progr', b"\n", b"[]\n"]
    torn += [b'{"kind": "later version", "time": 120.0}\n', *lines[1:], lines[8][:30]]
    reader = Reader()
    found = read(reader.lines(torn))
    assert reader.damaged == 3
    assert found is not None and plain(_of(found)) == plain(told(STORY))


def _of(job):
    return of_job(job, assumptions(job, None, False, None))


# -- causes, words ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "cause", "code", "rank", "node"),
    [
        ("rank 1: killed by SIGKILL (by another process)", "killed by SIGKILL", "", 1, -1),
        ("rank 1: left with exit code 1 after ValueError: x", "raised ValueError", "", 1, -1),
        ("rank 2: exited with status 0 before step 5", "exited", "", 2, -1),
        ("rank 7: on-chip memory fault in step 5: poisoned", "memory fault", "", 7, -1),
        ("rank 1: its device is RestartNPU: 0x80e18005", "device: RestartNPU", "80E18005", 1, -1),
        ("rank 4: no progress for 3.1 s in step 9", "hung", "", 4, -1),
        ("rank 4: silent in REBUILD for 20 s", "silent in a repair", "", 4, -1),
        ("node 3 comes back: it was away", "came back", "", -1, 3),
        ("nodes 2,3 come back: they were away", "came back", "", -1, -1),
        ("node 3 cannot come back: its process has ended", "could not come back", "", -1, 3),
        ("node 12: its process has ended (ECONNREFUSED)", "node lost", "", -1, 12),
        ("something else entirely 12345678 happened", "something else entirely N", "", -1, -1),
        ("", "unknown", "", -1, -1),
    ],
)  # fmt: skip
def test_what_a_fault_says(text, cause, code, rank, node):
    found = fault(text)
    assert (found.cause, found.code, found.rank, found.node) == (cause, code, rank, node)


def test_consequences_are_causes_only_alone():
    failed = fault("rank 0: a collective failed in step 5: Connection closed by peer")
    assert to_blame([failed, fault(KILLED)]) == [fault(KILLED)]
    assert to_blame([failed, failed]) == [failed]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0004, "0 ms"),
        (0.9994, "999 ms"),
        (1.0, "1.0 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min"),
        (3599.6, "1 h"),
        (3600 + 600, "1 h 10 min"),
        (86400 - 10, "1 d"),
        (86400 * 3 + 7200, "3 d 2 h"),
    ],
)
def test_spans(seconds, text):
    assert words.span(seconds) == text


def test_intervals():
    assert figures.united([(5, 7), (1, 3), (2, 4), (9, 20), (8, 8)], (2, 10)) == [
        (2, 4),
        (5, 7),
        (9, 10),
    ]


def test_the_tables():
    console = Console(file=io.StringIO(), width=110, highlight=False)
    console.print(render(told([*STORY, END], restart=60.0)))
    text = console.file.getvalue()
    for part in ("goodput", "92.8%", "≥10", "recover-in-place", "node 1 (10.0.0.2)", "80E01801"):
        assert part in text, text
    assert "a restart of all ranks, which takes 1 min" in " ".join(text.split())
    hostile = incident(1, 200.0, 1.0, "rank 0: \x1b[2J[bold]x[/]", strategy="\x1b[31m")
    console = Console(file=io.StringIO(), width=110, highlight=False)
    console.print(render(told([*BEGIN, hostile])))
    assert "\x1b" not in console.file.getvalue()

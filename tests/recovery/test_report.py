"""`taskd report` of a real job that loses a rank: while it runs, and when it is over."""

from __future__ import annotations

import json

import training

WORLD, STEPS = 3, "100"


def told(job: training.Running, *options: str) -> dict:
    done = job.taskd("report", "--json", *options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_job_that_loses_a_rank(tmp_path):
    directory = tmp_path / "job"
    page, trace = tmp_path / "report.html", tmp_path / "trace.json"
    with training.start(directory, WORLD, "steered.py", STEPS) as job:
        job.trains()
        job.until("its journal has begun", lambda: job.taskd("report").returncode == 0)
        before = told(job)
        # its manager says what it does now
        assert before["now"]["state"] == "training" and before["end"] is None
        assert before["summary"].startswith("Training now")
        assert before["incidents"] == [] and "No incident in" in before["summary"]
        job.kill(1)
        job.repaired()
        job.until("the repair is in the report", lambda: len(told(job)["incidents"]) == 1)
        result = job.end()
    assert result.status == 0, result.output
    after = told(job, "--html", str(page), "--trace", str(trace))
    assert after["now"] is None and after["end"]["ok"]
    (incident,) = after["incidents"]
    assert (incident["result"], incident["strategy"]) == ("repaired", "recover-in-place")
    assert incident["causes"] == ["killed by SIGKILL"] and incident["replaced"] == [1]
    assert after["by_device"][0]["name"] == "node 0, device 1 (rank 1)"
    assert 0 < incident["seconds"] <= incident["lost_seconds"] < after["observed_seconds"]
    assert 0 < after["goodput"] < 1
    restart = after["restart_from_checkpoint"]
    assert restart["restart_measured"] and restart["restart_seconds"] == after["start_seconds"]
    # at least the start; against the incident no time is compared: on a busy machine a start of
    # three small ranks once took less than a repair
    assert restart["lost_seconds"] >= restart["restart_seconds"] > 0
    assert "killed by SIGKILL" in page.read_text()
    events = json.loads(trace.read_text())["traceEvents"]
    ranks = {e["tid"] for e in events if e.get("cat") == "rank" and e["name"] == "RESUME"}
    assert len(ranks) == WORLD

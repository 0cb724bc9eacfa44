"""The manager of a job of one node is killed: the agent starts the next one, and what has broken meanwhile is repaired."""

from __future__ import annotations

import os
import signal

import psutil
import training

STEPS = "160"


def manager(job: training.Running) -> int:
    mine = [p for p in psutil.process_iter(["cmdline", "environ"]) if "taskd.manager" in (p.info["cmdline"] or [])]
    (found,) = [p.pid for p in mine if (p.info["environ"] or {}).get("TASKD_LOG_PATH") == job.env["TASKD_LOG_PATH"]]
    return found


def test_the_manager_is_killed_also_together_with_a_rank(tmp_path, reference):
    with training.start(tmp_path / "job", 2, "steered.py", STEPS) as job:
        job.trains()
        for number, rank in ((2, None), (3, 1)):
            os.kill(manager(job), signal.SIGKILL)
            if rank is not None:
                job.kill(rank)
            job.until("another manager was in charge", lambda n=number: f"in charge in term {n}" in job.result().log("manager*.log"))
            job.trains()
        (incident,) = job.repaired()
        assert (incident["strategy"], incident["ranks"]) == ("recover-in-place", [1]), incident
        # operators reach it where the first one was
        job.control.pause()
        job.control.resume()
        result = job.end()
    training.assert_equal(result, reference(2, "steered.py", STEPS), 2)

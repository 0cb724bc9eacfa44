"""Two jobs of one user on one machine, with nothing said about ports."""

from __future__ import annotations

import json
import os
import signal

import pytest
import training

# two jobs that were started by hand, without a secret
UNNAMED = {"TASKD_PORT": None, "MINDX_TASK_ID": None, "TASKD_SECRET": None, "PET_MASTER_PORT": None}


@pytest.mark.long
def test_two_jobs_run_side_by_side_and_commands_find_them(tmp_path, reference):
    """Started at once, with one log directory; each loses a rank."""
    log = str(tmp_path / "log")
    jobs = [
        training.start(tmp_path / name, 2, "steered.py", "40", **UNNAMED, TASKD_LOG_PATH=log)
        for name in ("a", "b")
    ]
    with jobs[0], jobs[1]:
        for job in jobs:
            os.kill(job.pid(1), signal.SIGKILL)
        several = jobs[0].taskd("pause")
        assert several.returncode == 1 and "several jobs of this user run" in several.stderr
        for job in jobs:
            found = [j for j in several.stderr.split("(") if f"launcher {job._process.pid}," in j]
            port = found[0].split(",")[0].removeprefix("port ")
            paused = job.taskd("pause", "--port", port)
            assert paused.returncode == 0 and "all ranks are paused" in paused.stdout
            model = json.loads(job.taskd("status", "--port", port, "--json").stdout)
            assert len(model["incidents"]) == 1
            name = "default" if port == "9601" else f"default-{port}"
            assert model["job"] == name
            # a job of another test may have that name too
            done = job.taskd("continue", "--job", name, "--port", port)
            assert done.returncode == 0, done.stderr
        results = [job.end() for job in jobs]
    for result in results:
        training.assert_equal(result, reference(2, "steered.py", "40"), 2)

"""`taskd inject kill`, `exit` and `stop`: the present process of that rank, and no other, has the
fault; the command says which one it was; the run is the undisturbed one."""

from __future__ import annotations

import os
import re
import subprocess

import training

WORLD, STEPS = 4, "90"
KINDS = (
    ("kill", "was killed by SIGKILL"),
    ("exit", "has ended: exited with status 7"),
    ("stop", "was stopped by SIGSTOP"),
)


def test_signals_and_exits(tmp_path, reference):
    with training.start(tmp_path, WORLD, "steered.py", STEPS, TASKD_HANG_LIMIT="1") as job:
        for rank, (kind, words) in zip((2, 0, 2), KINDS, strict=True):
            job.trains()
            pid = job.pid(rank)
            more = ("--status", "7") if kind == "exit" else ()
            done = job.taskd("inject", kind, "--rank", str(rank), *more)
            assert done.returncode == 0, done.stderr
            where = re.fullmatch(
                r"rank (\d+): pid (\d+) on node 0, host (\S+), (.*)\n", done.stdout
            )
            assert where is not None, done.stdout
            assert where.groups()[:3] == (str(rank), str(pid), os.uname().nodename)
            assert words in where[4]
            (incident,) = job.repaired()
            assert incident["ranks"] == [rank], incident
            assert job.pid(rank) != pid
        refused = job.taskd("inject", "exit", "--rank", "1", "--status", "256")
        assert refused.returncode == 2 and "256 is not in the range" in refused.stderr
        result = job.end()
    training.assert_equal(result, reference(WORLD, "steered.py", STEPS), WORLD)
    assert [len(result.pids(rank)) for rank in range(WORLD)] == [2, 1, 3, 1]


def test_a_job_that_allows_no_faults(tmp_path):
    with training.start(tmp_path, 1, "steered.py", STEPS, TASKD_FAULT_INJECTION="off") as job:
        job.trains()
        done: subprocess.CompletedProcess[str] = job.taskd("inject", "kill", "--rank", "0")
        assert done.returncode == 1
        assert "start it with TASKD_FAULT_INJECTION=on" in done.stderr
        job.trains()

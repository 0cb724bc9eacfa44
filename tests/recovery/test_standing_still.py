"""The manager or the zygote is stopped by a signal, and a rank dies: nothing that was said is lost,
nobody waits forever."""

from __future__ import annotations

import os
import signal
import time

import psutil
import training

STEPS = "160"
# seconds; the connection of an agent with a manager that stands still is ended after 2 to 3
LOST = 3.5


def process(job: training.Running, module: str) -> int:
    """Of the job, the one that runs `module`; what the zygote has forked shows its command line for
    a moment."""
    found = [
        p
        for p in psutil.process_iter(["cmdline", "environ"])
        if any(module in word for word in p.info["cmdline"] or [])
        and (p.info["environ"] or {}).get("TASKD_LOG_PATH") == job.env["TASKD_LOG_PATH"]
    ]
    pids = {p.pid for p in found}
    (known,) = [p.pid for p in found if p.ppid() not in pids]
    return known


def test_manager_and_zygote_stand_still_while_ranks_die(tmp_path, reference):
    # by its environment a process is found that was started, not one that was forked
    with training.start(tmp_path / "job", 2, "steered.py", STEPS, fork="") as job:
        job.trains()
        manager = process(job, "taskd.manager")
        os.kill(manager, signal.SIGSTOP)
        job.kill(1)
        time.sleep(LOST)
        os.kill(manager, signal.SIGCONT)
        job.until("the death was heard", lambda: len(job.incidents()) == 1)
        job.trains()
        os.kill(process(job, "taskd.agent.ranks.zygote"), signal.SIGSTOP)
        job.kill(0)
        job.until("another process took its place", lambda: len(job.incidents()) == 2)
        job.trains()
        result = job.end()
    assert "has not started rank 0 within" in result.log("agent-0.log")
    assert [i["ranks"] for i in result.incidents] == [[1], [0]]
    training.assert_equal(result, reference(2, "steered.py", STEPS), 2)

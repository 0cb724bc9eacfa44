"""The manager or the zygote is stopped by a signal, and a rank dies: nothing that was said is lost,
nobody waits forever."""

from __future__ import annotations

import os
import signal
import time

import pytest
import training

STEPS = "100"
# seconds; the connection of an agent with a manager that stands still is ended after 2 to 3
LOST = 3.5


@pytest.mark.long
def test_manager_and_zygote_stand_still_while_ranks_die(tmp_path, reference):
    with training.start(tmp_path / "job", 2, "steered.py", STEPS) as job:
        job.trains()
        manager = job.manager()
        os.kill(manager, signal.SIGSTOP)
        job.kill(1)
        time.sleep(LOST)
        os.kill(manager, signal.SIGCONT)
        job.until("the death was heard", lambda: len(job.incidents()) == 1)
        job.trains()
        os.kill(job.zygote(), signal.SIGSTOP)
        job.kill(0)
        job.until("another process took its place", lambda: len(job.incidents()) == 2)
        job.trains()
        result = job.end()
    assert "has not started rank 0 within" in result.log("agent-0.log")
    assert [i["ranks"] for i in result.incidents] == [[1], [0]]
    training.assert_equal(result, reference(2, "steered.py", STEPS), 2)

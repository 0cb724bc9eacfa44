"""The manager of a job of one node is killed: the agent starts the next one, and what has broken
meanwhile is repaired.

The job has no TASKD_SECRET: manager, agent, the managers that follow and operators find the one
that the first of them has made.
"""

from __future__ import annotations

import os
import signal

import pytest
import training

from taskd.control import Control, NoManager

STEPS = "100"


def test_the_manager_is_killed_also_together_with_a_rank(tmp_path, reference):
    with training.start(
        tmp_path / "job",
        2,
        "steered.py",
        STEPS,
        TASKD_SECRET=None,
        TASKD_FAULT_INJECTION=None,
        TASKD_FAULT_REPORTS=None,
    ) as job:
        job.trains()
        for what, variable in (
            (("memory",), "TASKD_FAULT_INJECTION"),
            (("code", "80E01801"), "TASKD_FAULT_REPORTS"),
        ):
            refused = job.taskd("inject", *what, "--rank", "0")
            assert refused.returncode == 1 and f"{variable}=on" in refused.stderr, refused.stderr
        # what was enough before
        stranger = Control({**job.env, "TASKD_SECRET": f"job id: {job.env['MINDX_TASK_ID']}"})
        with stranger, pytest.raises(NoManager):
            stranger.pause(0.5)
        for number, rank in ((2, None), (3, 1)):
            os.kill(job.manager(), signal.SIGKILL)
            if rank is not None:
                job.kill(rank)
            job.until(
                "another manager was in charge",
                lambda n=number: f"in charge in term {n}" in job.result().log("manager*.log"),
            )
            job.trains()
        (incident,) = job.repaired()
        assert (incident["strategy"], incident["ranks"]) == ("recover-in-place", [1]), incident
        # operators reach it where the first one was, and with the same secret
        assert job.taskd("pause").returncode == 0
        job.control.pause()
        job.control.resume()
        result = job.end()
    training.assert_equal(result, reference(2, "steered.py", STEPS), 2)

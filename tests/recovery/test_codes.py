"""Fault codes that are told of a running job, from `taskd inject code` to the step that is
repeated."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time

import psutil
import pytest
import training

from taskd.mindcluster.faults.configuration import SHIPPED

STEPS = "100"
CHANGED = "handling 'mindx-dl-fault-config' configmap change succeed"
NOT_CHANGED = "handling 'mindx-dl-fault-config' configmap change failed"


def told(job, *arguments):
    done = job.taskd("inject", "code", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
def test_codes_are_answered_as_the_files_say_and_the_files_may_change(tmp_path, reference):
    config = tmp_path / "config"
    shutil.copytree(SHIPPED, config)
    with training.start(
        tmp_path / "job", 2, "steered.py", STEPS, TASKD_FAULT_CONFIG=str(config)
    ) as job:
        job.trains()

        # RestartBusiness: the step is repeated, every process stays
        assert "RestartBusiness" in told(job, "80E01801", "--rank", "0")
        (incident,) = job.repaired()
        assert (incident["strategy"], incident["ranks"]) == ("retry", []), incident
        assert "80E01801 is in RestartBusinessCodes" in incident["faults"][0]

        # NotHandleFault: nothing
        assert "required: nothing" in told(job, "8C1F860B", "--rank", "1")

        # another table while the job trains: what is broken is refused, and the old one stays
        codes = json.loads((config / "faultCode.json").read_text())
        (config / "faultCode.json").write_text("{")
        job.until(
            "the refusal of a broken file", lambda: NOT_CHANGED in job.result().log("manager.log")
        )
        codes["NotHandleFaultCodes"].remove("8C1F860B")
        codes["RestartNPUCodes"].append("8C1F860B")
        new = config / "faultCode.new"
        new.write_text(json.dumps(codes))
        new.replace(config / "faultCode.json")
        job.until("the new table", lambda: CHANGED in job.result().log("manager.log"))

        # RestartNPU: the process cannot be kept, and the next one waits for the device's reset
        old = job.pid(1)
        assert "RestartNPU" in told(job, "8C1F860B", "--rank", "1", "--kind", "occur")
        job.until("its process was gone", lambda: not psutil.pid_exists(old))
        refused = job.taskd("faults", "release", "another").stderr
        assert re.search("these may not: .*/1", refused), refused
        told(job, "8C1F860B", "--rank", "1", "--kind", "recover")
        (incident,) = job.repaired()
        assert (incident["strategy"], incident["ranks"]) == ("recover-in-place", [1]), incident

        refused = job.taskd("inject", "code", "80E0180X", "--rank", "1")
        assert refused.returncode == 1 and "is not a fault code" in refused.stderr
        refused = job.taskd("inject", "code", "80E01801", "--rank", "9")
        assert refused.returncode == 1 and "rank 9" in refused.stderr
        result = job.end()
    training.assert_equal(result, reference(2, "steered.py", STEPS), 2)
    assert [len(result.pids(rank)) for rank in range(2)] == [1, 2]


@pytest.mark.long
def test_a_device_is_reset_and_the_manager_killed_meanwhile(tmp_path, reference):
    """The next one knows that it must wait."""
    with training.start(tmp_path / "job", 2, "steered.py", STEPS) as job:
        job.trains()
        old = job.pid(1)
        assert "RestartNPU" in told(job, "80C98001", "--rank", "1", "--kind", "occur")
        job.until("its process was gone", lambda: not psutil.pid_exists(old))
        manager = job.manager()
        os.kill(manager, signal.SIGKILL)
        job.until(
            "another manager",
            lambda: "as the previous manager knew" in job.result().log("manager.log"),
        )
        time.sleep(1.0)  # for it to start a process too early
        assert not job.incidents()
        told(job, "80C98001", "--rank", "1", "--kind", "recover")
        (incident,) = job.repaired()
        assert (incident["strategy"], incident["ranks"]) == ("recover-in-place", [1]), incident
        result = job.end()
    training.assert_equal(result, reference(2, "steered.py", STEPS), 2)
    assert [len(result.pids(rank)) for rank in range(2)] == [1, 2]

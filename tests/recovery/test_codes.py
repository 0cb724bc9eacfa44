"""Fault codes that are told of a running job, from `taskd inject code` to the step that is repeated."""

from __future__ import annotations

import json
import shutil

import training

from taskd.faults.configuration import SHIPPED

STEPS = "120"
CHANGED = "handling 'mindx-dl-fault-config' configmap change succeed"
NOT_CHANGED = "handling 'mindx-dl-fault-config' configmap change failed"


def told(job, *arguments):
    done = job.taskd("inject", "code", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_codes_are_answered_as_the_files_say_and_the_files_may_change(tmp_path, reference):
    config = tmp_path / "config"
    shutil.copytree(SHIPPED, config)
    with training.start(tmp_path / "job", 4, "steered.py", STEPS, TASKD_FAULT_CONFIG=str(config)) as job:
        job.trains()

        # RestartBusiness: the step is repeated, every process stays
        assert "RestartBusiness" in told(job, "80E01801", "--rank", "3")
        (incident,) = job.repaired()
        assert (incident["strategy"], incident["ranks"]) == ("retry", []), incident
        assert "80E01801 stands in RestartBusinessCodes" in incident["faults"][0]

        # NotHandleFault: nothing
        assert "it asks: nothing" in told(job, "8C1F860B", "--rank", "1")

        # another table while the job trains: what is broken is refused, and the old one stays
        codes = json.loads((config / "faultCode.json").read_text())
        (config / "faultCode.json").write_text("{")
        job.until("the refusal of a broken file", lambda: NOT_CHANGED in job.result().log("manager.log"))
        codes["NotHandleFaultCodes"].remove("8C1F860B")
        codes["RestartNPUCodes"].append("8C1F860B")
        new = config / "faultCode.new"
        new.write_text(json.dumps(codes))
        new.replace(config / "faultCode.json")
        job.until("the new table", lambda: CHANGED in job.result().log("manager.log"))

        # RestartNPU: the process cannot be kept
        assert "RestartNPU" in told(job, "8C1F860B", "--rank", "1")
        (incident,) = job.repaired()
        assert (incident["strategy"], incident["ranks"]) == ("recover-in-place", [1]), incident

        refused = job.taskd("inject", "code", "80E0180X", "--rank", "1")
        assert refused.returncode == 1 and "is not a fault code" in refused.stderr
        refused = job.taskd("inject", "code", "80E01801", "--rank", "9")
        assert refused.returncode == 1 and "rank 9" in refused.stderr
        result = job.end()
    training.assert_equal(result, reference(4, "steered.py", STEPS), 4)
    assert [len(result.pids(rank)) for rank in range(4)] == [1, 2, 1, 1]


def test_a_device_that_is_separated_by_hand_ends_a_job_that_has_no_other(tmp_path):
    """The second time in a day; and the operator who has told of it hears that before the manager leaves."""
    with training.start(tmp_path / "job", 2, "steered.py", STEPS) as job:
        job.trains()
        told(job, "80E01801", "--rank", "1")
        job.repaired()
        assert "ManuallySeparateNPU" in told(job, "80E01801", "--rank", "1")
        result = job.end()
        assert result.status == 1 and "80E01801 has come 2 times within 86400 s" in training.paragraph(result)
        (device,) = json.loads(job.taskd("faults", "list", "--json").stdout)
        released = job.taskd("faults", "release", device["device"])  # no manager answers: the journal is changed
        assert released.returncode == 0, released.stderr
        assert json.loads(job.taskd("faults", "list", "--json").stdout) == []

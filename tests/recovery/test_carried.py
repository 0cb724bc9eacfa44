"""Variables that a loop carries from step to step: restored, or named before they matter."""

from __future__ import annotations

import re

import pytest
import training

FAULTS = "1:0:tail:kill,1:4:backward:kill,0:7:tail:kill,1:10:begin:kill,0:13:backward:kill"
CARRIED = {
    "module": ["ahead", "best", "hidden", "mean"],
    "function": [
        "average.count",
        "average.sum",
        "calls",
        "hidden",
        "mean",
        "meter.count",
        "meter.total",
        "seen_steps",
    ],
    "epochs": ["best", "running", "total", "worse"],
    "trainer": ["self.mean", "self.number"],
    "calls": ["self.mean", "self.number"],
    "library": [],
}


@pytest.mark.parametrize(
    "kind", ["function", *training.long("trainer", "library", "module", "epochs", "calls")]
)
def test_what_a_loop_carries_is_restored(tmp_path, reference, kind):
    """Also where a job ends instead of leaving something out, as it does for code between passes
    over range()."""
    strict = {"TASKD_CARRIED": "restore" if kind == "epochs" else "refuse"}
    result = training.taskd(tmp_path / "job", 2, "loops.py", kind, faults=FAULTS, **strict)
    training.assert_equal(result, reference(2, "loops.py", kind), 2)
    log = result.log("worker-0.log")
    found = re.findall(r"also protected: (\S+) \(line (\d+) of loops.py\)", log)
    assert sorted({name for name, _ in found}) == CARRIED[kind]
    assert ("not protected" in log) == (kind == "epochs") and "not seen by taskd" not in log
    if kind == "library":
        assert "also protected: numbers of trainer (Trainer)" in log


def test_what_cannot_be_restored_is_named_before_the_first_step(tmp_path):
    result = training.taskd(tmp_path / "job", 2, "loops.py", "drawn")
    assert result.status == 0
    (line,) = [x for x in result.log("worker-0.log").splitlines() if "not protected" in x]
    assert re.search(r"loader \(line \d+ of loops.py\), a _\w+DataLoaderIter: ", line)
    assert "job.iterate(source)" in line
    assert "not seen by taskd" not in result.log("worker-0.log")


@pytest.mark.parametrize("kind", ["drawn", "late"])
def test_a_strict_job_ends_instead(tmp_path, kind):
    result = training.taskd(tmp_path / "job", 2, "loops.py", kind, TASKD_CARRIED="refuse")
    assert result.status == 93
    what = {"drawn": "loader (line", "late": "kept (line"}[kind]
    assert f"TASKD_CARRIED=refuse: not protected: {what}" in training.paragraph(result)
    assert max(result.steps(0), default=-1) <= 4


def test_replicas_that_drift_apart_after_a_repair_end_the_job(tmp_path):
    result = training.taskd(tmp_path / "job", 2, "loops.py", "drift", faults="1:5:tail:kill")
    assert result.status == 1
    why = training.paragraph(result)
    assert "tensors differ between ranks: model.0.weight" in why
    assert "equal before the repair at step 5" in why


def test_a_look_at_a_function_keeps_nothing_of_it_alive(tmp_path, reference):
    result = training.taskd(
        tmp_path / "job", 2, "loops.py", "clean", faults="1:5:backward:kill,0:9:tail:kill"
    )
    training.assert_equal(result, reference(2, "loops.py", "clean"), 2)
    assert "not seen by taskd" not in result.log("worker-*.log")

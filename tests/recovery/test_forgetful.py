"""A script that keeps much from step to step and gives little of it to protect()."""

from __future__ import annotations

import training

FAULTS = (
    "1:2:mid:kill,0:5:mid:cut,0:6:tail:kill,1:9:begin:kill,"
    "0:10:mid:kill,1:11:tail:kill,1:13:backward:kill"
)


def test_what_belongs_to_the_protected_objects_comes_back_with_them(tmp_path, reference):
    result = training.taskd(tmp_path / "job", 2, "forgetful.py", "16", faults=FAULTS)
    training.assert_equal(result, reference(2, "forgetful.py", "16"), 2)
    log = result.log("worker-0.log")
    for name in (
        "main.plan (SequentialLR)",
        "main.average (AveragedModel)",
        "main.scaler (GradScaler)",
        "main.noise[0] (Random)",
    ):
        assert f"also protected: {name}" in log, name
    assert "since step 0 at the latest, " in log
    assert "not seen by taskd" not in log
    assert [len(result.pids(rank)) - 1 for rank in range(2)] == [2, 4]

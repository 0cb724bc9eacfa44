"""What a script notices or says itself: a result that is not finite, an error that names a fault of its device."""

from __future__ import annotations

import training


def test_checks_and_errors_of_a_device(tmp_path, reference):
    """Rank 1's parameters are wrong in a step and, after that, before the copy of them is taken; later the data give no finite loss."""
    faults = "1:3:begin:corrupt,1:5:between:corrupt,2:9:reduced:xpu-core-stopped,0:12:tail:xpu-port-down,1:15:begin:xpu-memory"
    result = training.taskd(tmp_path / "job", 3, "checked.py", "22", faults=faults)
    training.assert_equal(result, reference(3, "checked.py", "22"), 3)
    for i in result.incidents:
        print(i["strategy"], i["ranks"], i["step"], i["faults"], i["tried"])
    assert 0

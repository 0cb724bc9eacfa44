"""What a script notices or says itself: a result that is not finite, an error that names a fault of
its device."""

from __future__ import annotations

import re

import training


def test_checks_and_errors_of_a_device(tmp_path, reference):
    """Rank 1's parameters are wrong in a step, then before its part of the node's copy is taken;
    later the data give no finite loss."""
    faults = (
        "1:3:begin:corrupt,1:5:between:corrupt,2:9:reduced:xpu-core-stopped,"
        "0:12:tail:xpu-port-down,1:15:begin:xpu-memory"
    )
    result = training.taskd(tmp_path / "job", 3, "checked.py", "22", faults=faults)
    training.assert_equal(result, reference(3, "checked.py", "22"), 3)
    told = [fault for incident in result.incidents for fault in incident["faults"]]
    for words in (
        "rank 1: fault in step 3: the result is not finite",
        "rank 1: fault in step 6: the result is not finite",
        "rank 2: fault in step 9: XPU core: RuntimeError: xpu core stopped",
        "rank 0: a collective failed in step 12: RuntimeError: xpu port down",
        "rank 1: on-chip memory fault in step 15: XPU ECC: RuntimeError: xpu memory",
        "rank 1 cannot be kept: XPU ECC: cpu cannot tell which memory is damaged",
        "rank 1: fault in step 18: the result is not finite",
        "rank 2: fault in step 18: the result is not finite",
    ):
        assert any(words in fault for fault in told), (words, told)
    assert [len(result.pids(rank)) for rank in range(3)] == [1, 2, 1]
    again = re.findall(
        r"rank (\d): the result of step 18 is not finite again", result.log("worker-*.log")
    )
    assert sorted(again) == ["1", "2"]

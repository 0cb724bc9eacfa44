"""What a script notices or says itself: a result that is not finite, an error that names a fault of
its device."""

from __future__ import annotations

import re

import training

INFINITE = {18: (1, 2), 19: (1,), 23: (2,)}  # those of the script in which some are


def test_checks_and_errors_of_a_device(tmp_path, reference):
    """Rank 1's parameters are wrong in a step, then before its part of the node's copy is taken;
    later the data give some ranks no finite loss, then all: a bad batch is left out by all."""
    faults = (
        "1:3:begin:corrupt,1:5:between:corrupt,2:9:reduced:xpu-core-stopped,"
        "0:12:tail:xpu-port-down,1:15:begin:xpu-memory"
    )
    result = training.taskd(tmp_path / "job", 3, "checked.py", "26", faults=faults)
    training.assert_equal(result, reference(3, "checked.py", "26"), 3)
    told = [fault for incident in result.incidents for fault in incident["faults"]]
    for words in (
        "rank 1: fault in step 3: the result is not finite",
        "rank 1: fault in step 6: the result is not finite",
        "rank 2: fault in step 9: XPU core: RuntimeError: xpu core stopped",
        "rank 0: a collective failed in step 12: RuntimeError: xpu port down",
        "rank 1: on-chip memory fault in step 15: XPU ECC: RuntimeError: xpu memory",
        "rank 1 cannot be kept: XPU ECC: cpu cannot tell which memory is damaged",
        "fault in step 18: the result is not finite",  # of rank 1 or 2, which may stop the other
    ):
        assert any(words in fault for fault in told), (words, told)
    assert [len(result.pids(rank)) for rank in range(3)] == [1, 2, 1]
    again = re.findall(
        r"rank (\d): the result of step (\d+) is not finite again", result.log("worker-*.log")
    )
    bad = [(str(r), str(step)) for step in (18, 19, 23) for r in INFINITE[step]]
    # a rank that stops in a step before another has committed the one before it sends all ranks
    # back, and they log that one again
    assert {*again} == {*bad, *((str(r), "20") for r in range(3))}
    # once all results are bad, no step is repeated for that
    assert not any("step 21" in fault for fault in told), told

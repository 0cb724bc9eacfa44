"""Loops that call a function for each step: a call is repeated before it returns, the call before
it where all ranks go back a step, and a replacement begins at the right one."""

from __future__ import annotations

import pytest
import training

FAULTS = (
    "1:0:begin:kill",
    "2:1:backward0:kill",
    "0:2:tail:kill",
    "1:3:between:segv",
    "2:4:before:kill",
    "0:5:backward1:cut",
    "1:6:backward1:kill",
    # rank 0 does not begin step 8: the others have, and go back to 7
    "0:7:between:nap0.3",
    "0:8:before:kill",
    "2:9:begin:_exit1",
    "0:0:end:kill",
)


@pytest.mark.parametrize("kind", ["loader", "workers", "stream", "arguments", "attempts", "fsdp"])
def test_bit_for_bit(tmp_path, reference, kind):
    result = training.taskd(tmp_path / "job", 3, "calls.py", "12", kind, faults=",".join(FAULTS))
    training.assert_equal(result, reference(3, "calls.py", "12", kind), 3)
    assert len(result.incidents) >= 7, result.incidents

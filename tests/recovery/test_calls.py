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


# the script has more: a generator that draws by itself, sharded parameters
@pytest.mark.parametrize("kind", ["loader", *training.long("attempts", "workers", "arguments")])
def test_bit_for_bit(tmp_path, reference, kind):
    result = training.taskd(tmp_path / "job", 3, "calls.py", "12", kind, faults=",".join(FAULTS))
    training.assert_equal(result, reference(3, "calls.py", "12", kind), 3)
    # a fault before all ranks have committed the repeated step joins the incident
    assert sum(len(incident["faults"]) for incident in result.incidents) >= 6, result.incidents


def test_passes_that_end_inside_a_call(tmp_path, reference):
    """A pass is three steps and a call that finds its end; what is noted once a step is committed
    is noted once."""
    kills = "1:3:begin:kill,0:4:begin:kill,1:7:begin:cut,2:8:backward1:kill,0:11:before:kill"
    result = training.taskd(tmp_path / "job", 3, "calls.py", "14", "passes", faults=kills)
    training.assert_equal(result, reference(3, "calls.py", "14", "passes"), 3)
    assert max(len(result.pids(rank)) for rank in range(3)) > 1
    for rank in range(3):
        assert (tmp_path / "job" / f"noted.{rank}").read_text().split() == [
            str(step) for step in range(14)
        ]


def test_arguments_that_the_function_changes(tmp_path, reference):
    faults = "1:3:tail:cut,2:6:between:kill,0:8:backward1:cut"
    result = training.taskd(tmp_path / "job", 3, "calls.py", "10", "scaled", faults=faults)
    training.assert_equal(result, reference(3, "calls.py", "10", "scaled"), 3)


def test_a_process_that_cannot_repeat_a_call_is_replaced(tmp_path, reference):
    """It has changed parameters after the call that all ranks go back to."""
    result = training.taskd(
        tmp_path / "job", 3, "calls.py", "9", "clipped", faults="2:6:between:kill"
    )
    training.assert_equal(result, reference(3, "calls.py", "9", "clipped"), 3)
    assert max(len(result.pids(rank)) for rank in range(3)) > 1
    assert "this process is replaced" in result.output


def test_a_replacement_that_would_compute_from_other_arguments_ends_the_job(tmp_path):
    result = training.taskd(
        tmp_path / "job", 3, "calls.py", "9", "drawn-late", faults="1:4:tail:kill"
    )
    assert result.status == 1
    assert "cannot be repeated as the rank's previous process made it" in result.output

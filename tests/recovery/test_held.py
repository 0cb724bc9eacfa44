import pytest

from tests.recovery import training

FAULTS = "1:3:tail:kill,0:7:backward-done:kill,1:11:begin:kill,0:12:tail:kill,1:13:tail:raise"


@pytest.mark.parametrize("script", ["held.py", "kept_batches.py", "reached.py"])
def test_what_no_state_dict_has_is_as_it_was(tmp_path, reference, script):
    result = training.taskd(tmp_path / "job", 2, script, "15", faults=FAULTS)
    training.assert_equal(result, reference(2, script, "15"), 2)
    assert "not seen by taskd" not in result.output


def test_a_forward_that_depends_on_it_is_verified(tmp_path, reference):
    """Rank 0 computes the forward of rank 1's new process with what that has, and keeps its own."""
    faults = "1:3:tail:kill,1:7:begin:kill"
    result = training.taskd(tmp_path / "job", 2, "held.py", "16", faults=faults, TASKD_VERIFY="on")
    training.assert_equal(result, reference(2, "held.py", "16"), 2)
    assert result.log("worker-1*").count("verified: model computes the same on rank 1") == 2


def test_taskd_alone_changes_no_number(tmp_path, reference):
    """A class of optimizer derived from torch's own has hooks: torch would call them twice, had any
    optimizer of the base class been made in this process."""
    result = training.taskd(tmp_path / "job", 2, "held.py", "16")
    training.assert_equal(result, reference(2, "held.py", "16"), 2)

"""What cannot be repaired ends the job with one clear paragraph, and never hangs."""

from __future__ import annotations

import training


def test_a_replacement_that_dies_again_and_again(tmp_path):
    result = training.taskd(tmp_path / "job", 2, "mlp.py", "8", faults="1:3:forward:kill:99")
    assert result.status == 1
    text = training.paragraph(result)
    assert (
        "rank 1: killed by SIGKILL" in text
        and "recover-in-place: rank 1 was replaced 3 times and died again" in text
    )
    assert len(result.pids(1)) >= 1


def test_the_same_exception_twice_is_a_bug(tmp_path):
    result = training.taskd(tmp_path / "job", 2, "mlp.py", "8", faults="1:3:forward:raise:99")
    assert result.status == 93
    text = training.paragraph(result)
    assert "ValueError: a fault on purpose" in text and "a defect of the script" in text


def test_a_strategy_that_is_not_configured_is_not_used(tmp_path):
    result = training.taskd(
        tmp_path / "job",
        2,
        "mlp.py",
        "8",
        faults="1:3:forward:kill",
        options=("--recover-strategy", "retry"),
    )
    assert result.status == 1
    assert "retry: it keeps every process, and rank 1 has none" in training.paragraph(result)
    assert len(result.pids(0)) == 1


def test_without_a_manager_the_script_trains_unprotected(tmp_path):
    """Where that was asked for: a launcher whose manager never answers says so, once, and the
    training runs to its end."""
    nowhere = {"TASKD_MANAGER_ADDR": f"127.0.0.1:{training.free_port()}", "TASKD_MANAGER_WAIT": "2"}
    result = training.taskd(tmp_path / "job", 2, "mlp.py", "5", **nowhere, TASKD_UNPROTECTED="on")
    assert result.status == 0, result.output[-2000:]
    assert "no manager answers at 127.0.0.1" in result.output
    assert "this job is not protected" in result.output
    assert len(result.steps(0)) == 5

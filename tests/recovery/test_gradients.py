"""Gradients that wait between attempts are state: they come back on replaced and surviving ranks,
bit for bit."""

from __future__ import annotations

import pytest
import training

POINTS = ("begin", "backward", "backward-done", "before-update", "tail", "between")
# of accumulation: after one, two and three micro-batches, in the update, and right after it
MOMENTS = {  # fmt: skip
    "micro": [
        (1, "backward"),
        (2, "begin"),
        (3, "before-update"),
        (4, "begin"),
        (6, "backward-done"),
        (11, "tail"),
        (13, "between"),
        (15, "backward"),
    ],
    "periods": [(1, "tail"), (2, "before-update"), (4, "backward"), (7, "between"), (10, "begin")],
    "late": [
        (0, "tail"),
        (1, "begin"),
        (5, "backward"),
        (8, "backward-done"),
        (9, "tail"),
        (12, "between"),
    ],
    "zeros": [(2, "begin"), (5, "backward-done"), (8, "between")],
    "moody": [(9, "begin"), (10, "backward-done"), (11, "tail"), (13, "backward")],
}


@pytest.mark.parametrize("kind", ["moody", *training.long("micro", "periods", "late", "zeros")])
def test_ranks_are_killed_while_gradients_wait(tmp_path, reference, kind):
    faults = ",".join(
        f"{i % 2}:{step}:{point}:kill" for i, (step, point) in enumerate(MOMENTS[kind])
    )
    # a survivor that has committed the first backward with synchronization is taken back to before
    # it
    if kind == "micro":
        faults += ",0:3:between:nap0.3"
    verify = {"TASKD_VERIFY": "on"} if kind == "micro" else {}
    result = training.taskd(tmp_path / "job", 2, "carried.py", "18", kind, faults=faults, **verify)
    training.assert_equal(result, reference(2, "carried.py", "18", kind), 2)
    if verify:
        assert "verified: model computes the same on rank" in result.log("worker-*")


def test_a_rank_is_killed_before_another_commits_what_its_record_lacks(tmp_path, reference):
    """Rank 1 has used gradients that its record of step 1 lacks, so all go back to step 0: rank 0
    has not yet written over its record of that, though it has committed step 1."""
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "asked-1-commit").write_text("late")
    faults = {"faults": "0:2:begin:kill"}
    result = training.taskd(tmp_path / "job", 2, "carried.py", "6", "parted", **faults)
    training.assert_equal(result, reference(2, "carried.py", "6", "zeros"), 2)


@pytest.mark.parametrize(
    ("kind", "at", "found"),
    [
        ("forgetful", "6:backward", "gradients in memory differ from the record"),
        ("counting", "6:backward", "the first forward of model differs between rank 1"),
        # rank 0 has begun its update too, so that both are restored from records
        ("counting", "7:tail", "the first forward of model differs between rank 1"),
    ],
)
def test_a_restore_that_forgets_something_is_found_where_that_is_asked_for(
    tmp_path, kind, at, found
):
    """`forgetful`: gradients are not put back. `counting`: the model has state in an attribute that
    nobody can know of."""
    result = training.taskd(
        tmp_path / "job", 2, "carried.py", "8", kind, faults=f"1:{at}:kill", TASKD_VERIFY="on"
    )
    assert result.status == 1 and found in result.output

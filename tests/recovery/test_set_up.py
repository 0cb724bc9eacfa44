"""What a replacement's set-up sees: what its predecessor's saw."""

from __future__ import annotations

import pytest
import training


def test_collectives_of_the_set_up_and_between_passes_give_what_they_gave(tmp_path, reference):
    """Also to the second replacement, and to one that learns it all again from the first. Who dies
    after the last collective between passes gets what it had got: the others are in the next pass,
    or on their way there."""
    faults = (
        "1:3:begin:kill,0:8:tail:kill,1:14:begin:kill,3:15:tail:kill,0:20:begin:kill,"
        "2:0:ready:kill,1:0:evaluated:kill,0:1:evaluated:kill,3:2:evaluated:kill"
    )
    result = training.taskd(tmp_path / "job", 4, "learning.py", "4", faults=faults)
    training.assert_equal(result, reference(4, "learning.py", "4"), 4)
    assert [len(result.pids(rank)) for rank in range(4)] == [4, 4, 1, 3]
    names = {(result.directory / f"name-{rank}").read_text() for rank in range(4)}
    assert len({line for name in names for line in name.splitlines()}) == 1


def test_a_death_in_a_collective_between_passes_that_others_have_left(tmp_path, reference):
    """They are in the next pass: what they got is given to the replacement, and to its own."""
    result = training.taskd(
        tmp_path / "job", 4, "learning.py", "4", "2", faults="2:0:inside:kill,2:2:inside:segv"
    )
    training.assert_equal(result, reference(4, "learning.py", "4", "2"), 4)
    assert [len(result.pids(rank)) for rank in range(4)] == [1, 1, 3, 1]


@pytest.mark.parametrize("kind", ["steps", *training.long("range", "batches", "call")])
def test_a_loop_begins_where_the_scripts_own_snapshot_ends(tmp_path, reference, kind):
    faults = "1:13:begin:kill,0:17:tail:kill"
    if kind == "range":
        faults += ",1:19:between:kill"
    arguments = (kind, "30", "once")
    result = training.taskd(tmp_path / "job", 2, "snapshot.py", *arguments, faults=faults)
    training.assert_equal(result, reference(2, "snapshot.py", *arguments), 2)
    assert [len(result.pids(rank)) for rank in range(2)] == [2, 2 + (kind == "range")]
    assert min(result.steps(0)) == (0 if kind == "batches" else 4)


@pytest.mark.parametrize("kind", ["batches", *training.long("steps", "call", "range")])
def test_a_newer_snapshot_is_refused_by_name_and_value(tmp_path, kind):
    arguments = (kind, "30", "always")
    where = "between" if kind == "range" else "begin"  # nothing of the next call is known yet
    result = training.taskd(tmp_path, 2, "snapshot.py", *arguments, faults=f"1:13:{where}:kill")
    assert result.status != 0
    theirs, ours = {
        "steps": ("job.steps to step 30, first step 10", "job.steps to step 30, first step 4"),
        "batches": ("epoch 2, first step 10", "epoch 0"),
        "call": ("'job.call, first step 4'", "'job.call, first step 10'"),
        "range": ("start is 4, total is 30'", "start is 10, total is 30'"),
    }[kind]
    assert theirs in result.output and ours in result.output
    assert "start = taskd.once(load)" in training.paragraph(result)


def test_ranks_that_plan_different_loops_are_named_at_once(tmp_path):
    result = training.taskd(tmp_path, 2, "planning.py")
    assert result.status != 0
    assert (
        "the ranks run different loops: ranks [0]: job.steps to step 20; ranks [1]: job.steps to"
        " step 21"
    ) in training.paragraph(result)
    assert not any(result.steps(rank) for rank in range(2))

"""Process groups, FSDP2, tensor parallel and pipeline jobs: ranks die and connections break at many
points of a step, and the curve is that of an undisturbed run, bit for bit."""

from __future__ import annotations

import pytest
import torch
import training

# a rank dies in the forward, the backward, after the update, between two steps; connections are cut
# where the ranks are at different places
FAULTS = (
    "1:1:forward:kill",
    "3:3:backward:segv",
    "2:4:forward:cut",
    "0:5:reduced:_exit1",
    "1:6:backward:cut",
    "2:7:tail:kill",
    "0:8:between:kill",
)
# the script has more: reshard_after_forward off, mixed precision, full sharding alone, GPipe,
# tensor parallel alone
KINDS = ("hsdp", "pp", "fsdp-accumulate", *training.long("subgroups", "tpdp"))
# and this one: the other schedules with several stages a rank, pipelines with DDP or FSDP2 alone,
# sequence parallelism, CPU offload, other static graphs, post-local SGD
WAYS = ("zero", *training.long("static-uneven", "pp-interleaved", "cube", "powersgd"))


@pytest.mark.parametrize("kind", KINDS)
def test_bit_for_bit(tmp_path, reference, kind):
    training.of_this_torch(kind)
    # the halves of `subgroups` are found to differ at the end of step 0, which was recorded
    more = {"TASKD_SNAPSHOT_STEPS": "3"} if kind == "subgroups" else {}
    result = training.taskd(
        tmp_path / "job", 4, "parallel.py", "10", kind, faults=",".join(FAULTS), **more
    )
    training.assert_equal(result, reference(4, "parallel.py", "10", kind), 4)
    assert "not protected" not in result.output
    # on a slow machine a fault joins the incident before it
    assert 5 <= len(result.incidents) <= len(FAULTS), result.incidents


@pytest.mark.parametrize("kind", WAYS)
def test_more_ways_bit_for_bit(tmp_path, reference, kind):
    training.of_this_torch(kind)
    world = 8 if kind == "cube" else 4
    result = training.taskd(tmp_path / "job", world, "ways.py", "10", kind, faults=",".join(FAULTS))
    training.assert_equal(result, reference(world, "ways.py", "10", kind), world)
    assert "not protected" not in result.output
    struck = [path.name for path in result.directory.glob("struck-*")]
    assert len(struck) == len(FAULTS) and result.incidents, struck


def test_a_group_that_is_made_in_the_loop(tmp_path, reference):
    """Its connections are cut too, so no rank waits in it; it is made before a step, once."""
    faults = "1:3:tail:cut,2:5:tail:cut,3:7:forward:cut"
    result = training.taskd(tmp_path / "job", 4, "parallel.py", "10", "late-group", faults=faults)
    training.assert_equal(result, reference(4, "parallel.py", "10", "late-group"), 4)
    assert [i["strategy"] for i in result.incidents] == ["retry"] * 3


def test_a_replacement_with_other_groups_ends_the_job(tmp_path):
    result = training.taskd(tmp_path / "job", 4, "other_groups.py", "10", faults="1:3:forward:kill")
    assert result.status == 1
    assert "rank 1 has the process group '2' of ranks [0, 1], ranks [0] do not" in result.output


def test_processes_whose_groups_have_no_room_are_replaced(tmp_path, reference):
    cuts = ",".join(f"{step % 4}:{step}:forward:cut" for step in range(1, 18, 2))
    result = training.taskd(tmp_path / "job", 4, "little_room.py", "20", faults=cuts)
    training.assert_equal(result, reference(4, "mlp.py", "20"), 4)
    assert "its process groups have no room for further communicators" in result.log("manager.log")
    assert {i["strategy"] for i in result.incidents} == {"retry", "recover-in-place"}


@pytest.mark.skipif(torch.__version__ < "2.15", reason="gloo cannot be divided before torch 2.15")
def test_groups_that_are_divided(tmp_path, reference):
    """Before training, and in a step, also of groups that a repair has renewed. In step 3 a rank
    dies while another is a step behind: the others divide the groups of that step again."""
    faults = "2:2:divided:nap1,1:3:begin:kill,2:6:backward:kill,1:8:begin:cut"
    result = training.taskd(tmp_path / "job", 4, "splits.py", faults=faults)
    training.assert_equal(result, reference(4, "splits.py"), 4)

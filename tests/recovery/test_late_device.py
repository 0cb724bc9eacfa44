"""Training on a device whose work is queued, with collectives that an abort cuts: what a survivor
holds is never what an aborted collective left (tests/late)."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import training

ROOT = Path(__file__).parents[2]
STEPS = "20"
# behind a commit of the host the device is in the middle of the step, or has not begun it
KILLS = (
    "1:5:between:kill,0:8:between:kill,1:9:backward:kill,0:11:tail:kill,1:14:begin:kill,"
    "0:17:forward:kill"
)


@pytest.fixture(scope="module", autouse=True)
def compiled():
    """Built before a job waits for it."""
    building = "from tests import late; late.extension()"
    subprocess.run([sys.executable, "-c", building], cwd=ROOT, check=True)


KINDS = ["ddp", "accumulates", "metrics", "zero", "sharded", "groups", "batch"]


@pytest.mark.parametrize("kind", KINDS)
def test_kills_at_every_point(tmp_path, reference, kind):
    result = training.taskd(
        tmp_path / "job", 2, "late_device.py", STEPS, kind, "1000", faults=KILLS
    )
    training.assert_equal(result, reference(2, "late_device.py", STEPS, kind, "1000"), 2)
    died = re.findall(r"rank (\d) \(pid \d+\) killed by SIGKILL", result.output)
    # behind its commit of step 8 rank 0 may still be ending when rank 1 is killed in step 9
    assert sorted(died) == ["0", "0", "0", "1", "1", "1"], result.output[-3000:]


def test_a_device_that_is_stopped_in_the_middle_of_an_update(tmp_path, reference):
    """As an NPU's: an abort drops what is queued, an update too."""
    args = "late_device.py", STEPS, "ddp", "1000"
    result = training.taskd(tmp_path / "job", 2, *args, faults=KILLS, LATE_STOPS="1")
    training.assert_equal(result, reference(2, *args), 2)


def test_forming_cuts_nothing_that_is_still_sent(tmp_path, reference):
    """Ranks that begin with parameters of their own train apart, which a job may mean to do."""
    args = "late_device.py", STEPS, "forming"
    result = training.taskd(tmp_path / "job", 2, *args, faults="1:9:between:kill")
    training.assert_equal(result, reference(2, *args), 2)
    finals = [(tmp_path / "job" / f"rank-{r}").read_text().split()[-1] for r in range(2)]
    assert finals[0] == finals[1]


def test_a_graph_that_updates_is_refused(tmp_path, reference):
    """A replay runs no hook of the optimizer. The job trains on, unprotected."""
    args = "late_device.py", STEPS, "graphs"
    result = training.taskd(tmp_path / "job", 2, *args)
    training.assert_equal(result, reference(2, *args), 2)
    assert "without protection: a captured CUDA graph updates parameters" in result.output


def test_state_that_changes_before_the_update(tmp_path, reference):
    """Its copy for the node is torn while the step is computed: it is waited for from then on."""
    args = "late_device.py", STEPS, "encoder", "1000"
    result = training.taskd(tmp_path / "job", 2, *args, faults=KILLS)
    training.assert_equal(result, reference(2, *args), 2)
    waits = "are changed before the update: from now on each attempt waits"
    assert waits in result.log("worker-0.log")


def test_memory_that_the_device_cannot_register(tmp_path, reference):
    args = "late_device.py", STEPS, "ddp", "1000"
    result = training.taskd(tmp_path / "job", 2, *args, faults=KILLS, LATE_UNREGISTERED="1")
    training.assert_equal(result, reference(2, *args), 2)


def test_both_ranks_die(tmp_path, reference):
    faults = "0:6:between:kill,1:6:between:kill"
    args = "late_device.py", STEPS, "ddp", "1000"
    result = training.taskd(tmp_path / "job", 2, *args, faults=faults)
    training.assert_equal(result, reference(2, *args), 2)


@pytest.mark.parametrize("kind", ["ddp", "sharded"])
def test_a_dump_is_that_of_the_step(tmp_path, reference, kind):
    """The host is ahead of the device when the ranks pause; the copy waits for it."""
    args, place = ("late_device.py", STEPS, kind, "1000"), tmp_path / "dumps"
    more = {"TASKD_DUMP_PATH": str(place), "TASKD_KEEP_DUMPS": "9", "TASKD_SECRET": "tests"}
    result = training.taskd(tmp_path / "job", 2, *args, TASKD_DUMP_EVERY="1s", **more)
    whole = reference(2, *args)
    training.assert_equal(result, whole, 2)
    found = sorted(place.glob("step-*"))
    assert found, result.log("manager.log")[-3000:]
    for path in found:
        again = training.taskd(
            tmp_path / f"from-{path.name}", 2, *args, TASKD_RESUME_PATH=str(path), **more
        )
        assert again.status == 0, again.output[-3000:]
        assert [again.final(rank) for rank in range(2)] == [whole.final(rank) for rank in range(2)]

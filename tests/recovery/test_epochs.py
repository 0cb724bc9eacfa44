"""What a script does between two passes of its loop is done once, or said not to be."""

from __future__ import annotations

import re
import signal

import pytest
import training

from taskd.worker.training.epochs import AROUND, BETWEEN
from tests.lab.troubleshooting import told


@pytest.mark.parametrize(
    "faults",
    [
        "1:4:begin:kill,0:9:tail:kill,1:15:between:kill",
        "0:0:epoch:kill,1:1:evaluated:kill,0:17:begin:kill",
        "0:1:epoch:kill,0:2:evaluated:kill,1:3:epoch:kill",
        "1:1:epoch:kill,0:21:tail:kill",
        "0:3:left:kill,1:20:begin:kill",
        "0:3:left:late-kill,1:0:evaluated:late-kill",
        "1:2:tail:kill,1:3:begin:kill,1:3:evaluated:kill,1:3:left:kill",
    ],
)
def test_a_replacement_begins_with_its_epoch(tmp_path, reference, faults):
    """Means, evaluations, files, an early stop and loaders are those of an undisturbed run."""
    result = training.taskd(tmp_path, 2, "epochs.py", "epochs", faults=faults)
    training.assert_equal(result, reference(2, "epochs.py", "epochs"), 2)
    assert len(list(tmp_path.glob("struck-*"))) == faults.count("kill")
    for rank in range(2):
        means = [step for step in result.steps(rank) if 100 < step < 110]
        assert sorted(means) == [101, 102, 103, 104]


@pytest.mark.parametrize("loop", ["epochs", "range"])
@pytest.mark.parametrize("at", ["10:between", "1:epoch"])
def test_a_dump_between_and_in_epochs_goes_on(tmp_path, reference, loop, at):
    """The code between the passes that are over runs again over range; what it changes is undone:
    the scheduler, an averaged model, random numbers."""
    step, point = at.split(":")
    place, arguments = tmp_path / "dumps", ("epochs.py", loop)
    nap = f"0:{step}:{point}:nap"
    with training.start(tmp_path, 2, *arguments, faults=nap, TASKD_DUMP_PATH=str(place)) as job:
        struck = tmp_path / f"struck-0-{step}-{point}-0"
        job.until("it was between two passes", struck.exists)
        job.signal(signal.SIGTERM)
        job.until("all ranks knew", lambda: "has to leave" in job.result().log("manager.log"))
        (tmp_path / f"enough-{step}").touch()
        assert job.end().status == 75
    again = training.taskd(tmp_path, 2, *arguments, TASKD_RESUME_PATH=str(place))
    training.assert_equal(again, reference(2, *arguments), 2)


def test_code_between_passes_of_another_loop_is_named(tmp_path, reference):
    result = training.taskd(tmp_path, 2, "epochs.py", "range", faults="1:9:tail:kill")
    training.assert_equal(result, reference(2, "epochs.py", "range"), 2)
    log = result.log("worker-0.log")
    assert told(log, "runs between two passes of the loop: a replacement")
    named = re.search(r"not protected: the code at epochs\.py:(\d+) (.*)", log)
    assert named and named[2] == f"{BETWEEN} {AROUND}"

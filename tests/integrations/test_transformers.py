"""`transformers.Trainer.train` under taskd equals the plain trainer, whatever is killed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import training
from plain_trainers import TRAIN, assert_trained

FAULTS = {
    "accumulate": "0:0:step_begin:kill,1:2:substep_end:kill,0:4:optimizer_step:kill,"
    "1:5:epoch_end:kill,0:5:epoch_begin:kill,1:9:log:kill",
    "evaluate": "1:1:substep_end:kill,0:3:prediction_step:kill,1:3:evaluate:kill,"
    "0:6:saving:kill,1:7:save:kill",
    "epochs": "1:4:saving:kill,0:4:evaluate:kill,0:8:epoch_begin:kill,1:12:epoch_end:kill",
    # a rank's second replacement begins where the first one had begun
    "masked": "1:1:optimizer_step:kill,1:5:step_end:kill,0:9:step_begin:kill,0:9:step_end:kill",
    "resume": "1:6:step_begin:kill,0:7:optimizer_step:kill,0:12:saving:kill,1:14:epoch_end:kill,"
    "0:18:prediction_step:kill",
}
OTHERS = "1:2:step_begin:kill,0:3:optimizer_step:kill,1:5:step_end:kill,1:9:step_begin:kill"


@pytest.mark.parametrize(
    "kind",
    ["evaluate", *training.long("masked", "accumulate", "epochs", "encoder", "stops", "stream")],
)
def test_bit_for_bit(tmp_path, reference, kind):
    _compare(tmp_path / "job", reference(2, TRAIN, kind), kind)


@pytest.mark.long
def test_a_checkpoint_is_resumed_and_then_removed(tmp_path):
    begun = training.undisturbed(tmp_path / "begun", 2, TRAIN, "begun")
    for name in ("plain", "job"):
        shutil.copytree(begun.directory / "out", tmp_path / name / "out")
    plain = training.undisturbed(tmp_path / "plain", 2, TRAIN, "resume")
    _compare(tmp_path / "job", plain, "resume")
    assert not (tmp_path / "job/out/checkpoint-6").exists()


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "why"),
    [("refused", "auto_find_batch_size starts"), ("dispatched", "rank 0 reads the data")],
)
def test_what_is_refused_is_named_and_trains(tmp_path, reference, kind, why):
    result = _train(tmp_path / "job", kind, "")
    training.assert_equal(result, reference(2, TRAIN, kind), 2)
    assert f"this job is not protected: {why}" in result.log("worker-0.log")


def _train(directory: Path, kind: str, faults: str):
    with training.begin(directory, 2, TRAIN, str(directory), kind, faults=faults) as job:
        return job.end()


def _compare(directory: Path, plain, kind: str) -> None:
    faults = FAULTS.get(kind, OTHERS)
    result = _train(directory, kind, faults)
    assert_trained(result, plain)
    struck = {path.name.rsplit("-", 1)[0] for path in directory.glob("struck-*")}
    assert len(struck) == len(faults.split(","))

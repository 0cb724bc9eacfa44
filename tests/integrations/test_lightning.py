"""Lightning's Trainer with taskd's callback: ranks are killed at every kind of place, and the job,
its log and its checkpoints are those of the trainer alone."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("lightning")
sys.path.insert(0, str(Path(__file__).parents[1] / "recovery"))
import training
from lightning.pytorch.strategies import DDPStrategy, FSDPStrategy
from plain_trainers import FIT, Fits, assert_fitted, start

from taskd.integrations import lightning

KILLS = {
    "rich": "1:0:begin:kill,1:7:forward:kill,0:20:begin:kill,1:12:validation:kill,"
    "0:1:epoch-end:kill,1:2:epoch:kill,0:2:save:kill,1:60:end:kill",
    "resumed": "0:2:epoch:kill,1:51:forward:kill,0:55:begin:kill,1:12:validation:kill,"
    "0:2:epoch-end:kill,1:3:epoch:kill,0:2:save:kill,0:70:end:cut",
    "stream": "1:0:begin:kill,0:9:end:kill,1:10:begin:kill,0:25:forward:kill,1:5:epoch:kill",
    "sharded": "1:0:begin:kill,0:7:forward:kill,0:1:epoch-end:kill,1:49:end:kill",
}


@pytest.fixture(scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Fits:
    return Fits(tmp_path_factory.getbasetemp())


@pytest.mark.parametrize("kind", ["rich", *training.long("resumed", "stream", "sharded")])
def test_bit_for_bit(tmp_path: Path, alone: Fits, kind: str) -> None:
    job = tmp_path / "job"
    job.mkdir()
    if kind == "resumed":
        shutil.copy(start(alone("rich")), job / "from.ckpt")
    result = training.launch(job, 2, FIT, ".", kind, faults=KILLS[kind])
    assert_fitted(result, alone(kind), kind)
    assert len(result.incidents) >= 3


def trainer(**changes: Any) -> Any:
    about = {
        "strategy": DDPStrategy(),
        "fit_loop": SimpleNamespace(_data_fetcher=None),
        "lightning_module": SimpleNamespace(automatic_optimization=True),
        "reload_dataloaders_every_n_epochs": 0,
    }
    return SimpleNamespace(**{**about, **changes})


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (
            {"strategy": FSDPStrategy()},
            "FSDPStrategy cannot be repaired: use DDPStrategy, or Model",
        ),
        (
            {"lightning_module": SimpleNamespace(automatic_optimization=False)},
            "manual optimization",
        ),
        ({"reload_dataloaders_every_n_epochs": 1}, "reload_dataloaders_every_n_epochs makes other"),
        ({"_val_check_time_interval": 9.0}, "val_check_interval is a time"),
        ({}, ""),
    ],
)
def test_what_cannot_be_protected_is_named(changes: dict[str, Any], why: str) -> None:
    assert lightning.refusal(trainer(**changes)).startswith(why)


def test_another_lightning_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from lightning.pytorch import Trainer

    made = Trainer(logger=False, enable_checkpointing=False, accelerator="cpu")
    assert lightning.missing(made) == ""
    monkeypatch.delattr("lightning.pytorch.loops.fit_loop._select_data_fetcher")
    assert "has no _select_data_fetcher, which taskd's callback uses" in lightning.missing(made)
    monkeypatch.undo()
    monkeypatch.setattr("importlib.metadata.version", lambda name: "2.7.1")
    assert lightning.missing(made) == ""  # with the same loops
    monkeypatch.setattr("lightning.pytorch.loops.fit_loop._FitLoop.run", lambda loop: None)
    why = "Lightning 2.7.1 was not tested with taskd, and _FitLoop.run is not the code that"
    assert lightning.missing(made).startswith(why)

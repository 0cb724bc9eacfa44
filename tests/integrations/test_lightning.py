"""Lightning's Trainer with taskd's callback: ranks are killed at every kind of place, and the job,
its log and its checkpoints are those of the trainer alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("lightning")
sys.path.insert(0, str(Path(__file__).parents[1] / "recovery"))
import training
from lightning.pytorch.strategies import DDPStrategy, FSDPStrategy

from taskd.integrations import lightning

SCRIPT = str(Path(__file__).parent / "scripts" / "fit.py")
KILLS = {
    "rich": "1:0:begin:kill,1:7:forward:kill,0:20:begin:kill,1:12:validation:kill,"
    "0:1:epoch-end:kill,1:2:epoch:kill,0:2:save:kill,1:60:end:kill",
    "resumed": "0:2:epoch:kill,1:51:forward:kill,0:55:begin:kill,1:12:validation:kill,"
    "0:2:epoch-end:kill,1:3:epoch:kill,0:2:save:kill,0:70:end:cut",
    "stream": "1:0:begin:kill,0:9:end:kill,1:10:begin:kill,0:25:forward:kill,1:5:epoch:kill",
    "sharded": "1:0:begin:kill,0:7:forward:kill,0:1:epoch-end:kill,1:49:end:kill",
}

Reference = Callable[[str], Path]


@pytest.fixture(scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """Runs of the trainer alone, each made once."""
    base = tmp_path_factory.getbasetemp()

    def run(kind: str) -> Path:
        out = base / f"alone-{kind}"
        if out.exists():
            return out
        out.mkdir()
        if kind == "resumed":
            shutil.copy(start(run("rich")), out / "from.ckpt")
        subprocess.run(
            [training.BIN / "torchrun", "--standalone", "--nproc_per_node=2", SCRIPT, ".", kind]
            + ["alone"],
            cwd=out,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            check=True,
            timeout=training.LIMIT,
            stdout=subprocess.DEVNULL,
        )
        return out

    return run


def start(rich: Path) -> Path:
    """A checkpoint of the second epoch."""
    return next((rich / "checkpoints").glob("epoch=1-*"))


@pytest.mark.parametrize("kind", ["rich", "resumed", *training.long("stream", "sharded")])
def test_bit_for_bit(tmp_path: Path, alone: Reference, kind: str) -> None:
    job, plain = tmp_path / "job", alone(kind)
    job.mkdir()
    if kind == "resumed":
        shutil.copy(start(alone("rich")), job / "from.ckpt")
    result = training.launch(job, 2, SCRIPT, ".", kind, faults=KILLS[kind])
    assert result.status == 0, result.output[-3000:] + result.log("*.log")[-3000:]
    for rank in (0, 1):
        found, wanted = (records(d, rank) for d in (job, plain))
        assert found == wanted
    assert len(result.incidents) >= 3
    logs, wanted_logs = ((d / "logs").rglob("*") for d in (job, plain))
    assert {p.name for p in logs} == {p.name for p in wanted_logs} == {"version_0", "metrics.csv"}
    metrics = "logs/version_0/metrics.csv"
    assert (job / metrics).read_text() == (plain / metrics).read_text()
    if kind in ("rich", "resumed"):
        equal_checkpoints(job / "checkpoints", plain / "checkpoints")


def records(out: Path, rank: int) -> list[list[str]]:
    """What the rank has written of its last step and its final state, without its pid."""
    lines = (out / f"rank-{rank}").read_text().splitlines()
    return [
        [word for i, word in enumerate(line.split()) if i != 2 - (line[0] == "f")] for line in lines
    ]


def equal_checkpoints(one: Path, other: Path) -> None:
    names = sorted(p.name for p in one.iterdir())
    assert names == sorted(p.name for p in other.iterdir())
    for name in names:
        found, wanted = (
            dict(flat(torch.load(d / name, weights_only=False), d)) for d in (one, other)
        )
        differ = [k for k in found.keys() | wanted.keys() if not same(found.get(k), wanted.get(k))]
        assert not differ, f"{name}: {differ}"


def flat(value: Any, directory: Path, path: str = "") -> Any:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from flat(inner, directory, f"{path}.{key}".replace(str(directory), ""))
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from flat(inner, directory, f"{path}[{index}]")
    else:
        yield path, value.replace(str(directory), "") if isinstance(value, str) else value


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return torch.equal(one, other)
    return bool(one == other)


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
    monkeypatch.setattr("importlib.metadata.version", lambda name: "2.7.1")
    assert "Lightning 2.7.1 has not been tried" in lightning.missing(made)

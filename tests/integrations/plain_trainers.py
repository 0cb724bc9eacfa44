"""Trainers without taskd, and what a job of one has to have in common with them: every file, and
what each rank has recorded at its end."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import training

SCRIPTS = Path(__file__).parent / "scripts"
FIT, TRAIN, ACCELERATED = (str(SCRIPTS / name) for name in ("fit.py", "train.py", "accelerated.py"))


def name(trainer: tuple[str, str]) -> str:
    """Of a test of a script and its kind."""
    return Path(trainer[0]).stem


class Compare:
    """Compares a job with the trainer alone."""

    def __init__(self, base: Path) -> None:
        """`base`: what pytest gives to this process."""
        self._fits, self._references = Fits(base), training.References(base)

    def __call__(self, result: training.Result, script: str, kind: str) -> None:
        if script == FIT:
            assert_fitted(result, self._fits(kind), kind)
        elif script == TRAIN:
            assert_trained(result, self._references(2, script, kind))
        else:
            training.assert_equal(result, self._references(2, script, kind), 2)


# -- Lightning -------------------------------------------------------------------------------------


class Fits:
    """Runs of Lightning's trainer alone, each made once for all of pytest's workers."""

    def __init__(self, base: Path) -> None:
        """`base`: what pytest gives to this process."""
        self._shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def __call__(self, kind: str) -> Path:
        out = self._shared / f"alone-{kind}"
        with open(self._shared / f"{out.name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (out / "complete").exists():
                shutil.rmtree(out, ignore_errors=True)  # of a test that was ended in it
                out.mkdir()
                self._run(out, kind)
                (out / "complete").touch()
        return out

    def _run(self, out: Path, kind: str) -> None:
        if kind == "resumed":
            shutil.copy(start(self("rich")), out / "from.ckpt")
        subprocess.run(
            [training.BIN / "torchrun", "--standalone", "--nproc_per_node=2", FIT, ".", kind]
            + ["alone"],
            cwd=out,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            check=True,
            timeout=training.LIMIT,
            stdout=subprocess.DEVNULL,
        )


def start(rich: Path) -> Path:
    """A checkpoint of the second epoch."""
    return next((rich / "checkpoints").glob("epoch=1-*"))


def assert_fitted(result: training.Result, plain: Path, kind: str) -> None:
    assert result.status == 0, result.output[-3000:] + result.log("*.log")[-3000:]
    job = result.directory
    for rank in (0, 1):
        assert records(job, rank) == records(plain, rank)
    assert _logs(job) == _logs(plain)
    if kind in ("rich", "resumed"):
        _equal_checkpoints(job / "checkpoints", plain / "checkpoints")


def _logs(out: Path) -> dict[str, str]:
    found = {str(p.relative_to(out)): p for p in (out / "logs").rglob("*")}
    return {name: p.read_text() if p.is_file() else "" for name, p in found.items()}


def records(out: Path, rank: int) -> list[list[str]]:
    """What the rank has written of its last step and its final state, without its pid."""
    lines = (out / f"rank-{rank}").read_text().splitlines()
    return [
        [word for i, word in enumerate(line.split()) if i != 2 - (line[0] == "f")] for line in lines
    ]


def _equal_checkpoints(one: Path, other: Path) -> None:
    names = sorted(p.name for p in one.iterdir())
    assert names == sorted(p.name for p in other.iterdir())
    for name in names:
        found, wanted = (
            dict(_flat(torch.load(d / name, weights_only=False), d)) for d in (one, other)
        )
        differ = [k for k in found.keys() | wanted.keys() if not _same(found.get(k), wanted.get(k))]
        assert not differ, f"{name}: {differ}"


def _flat(value: Any, directory: Path, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, directory, f"{path}.{key}".replace(str(directory), ""))
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from _flat(inner, directory, f"{path}[{index}]")
    else:
        yield path, value.replace(str(directory), "") if isinstance(value, str) else value


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return torch.equal(one, other)
    return bool(one == other)


# -- transformers ----------------------------------------------------------------------------------


def assert_trained(result: training.Result, plain: training.Result) -> None:
    assert result.status == 0, f"{result.output[-3000:]}\n{result.log('*.log')[-6000:]}"
    for rank in range(2):
        # the log history, line by line, then callbacks' counts and all final state
        assert result.steps(rank) == plain.steps(rank)
        assert result.final(rank) == plain.final(rank)
    assert _files(result.directory / "out") == _files(plain.directory / "out")


def _files(directory: Path) -> dict[str, str]:
    files = [path for path in directory.rglob("*") if path.is_file()]
    # with the path of the output
    return {
        str(p.relative_to(directory)): _content(p) for p in files if p.name != "training_args.bin"
    }


def _content(path: Path) -> str:
    """Without times."""
    if path.suffix in (".pt", ".pth"):
        return repr(torch.load(path, weights_only=False))
    if path.name == "trainer_state.json":
        state = json.loads(path.read_text())
        for line in state["log_history"]:
            for name in [n for n in line if n.endswith(("runtime", "per_second"))]:
                del line[name]
        return json.dumps(state, sort_keys=True)
    return hashlib.sha256(path.read_bytes()).hexdigest()

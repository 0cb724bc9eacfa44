"""`make gpu` on the late device: each check comes to its end, and what must hold on a GPU holds."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GPU = ROOT / "benchmarks" / "gpu"


def names() -> list[str]:
    spec = importlib.util.spec_from_file_location("gpu_all", GPU / "all.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return list(module.CHECKS)


def run(out: Path, *arguments: str) -> tuple[int, list[dict[str, object]]]:
    environment = {**os.environ, "DEVICE": "cpu", "OUT": str(out)}
    command = [sys.executable, str(GPU / "all.py"), *arguments]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines == [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    return done.returncode, lines


@pytest.mark.timeout(900)
def test_each_check_comes_to_its_end(tmp_path):
    status, lines = run(tmp_path, "--seconds", "850")
    log = (tmp_path / "gpu.log").read_text()[-5000:]
    *checks, last = lines
    assert [line["check"] for line in checks] == names() and len(checks) == 12
    assert all(line["ok"] for line in checks), (checks, log)
    assert last == {"checks": 12, "failed": 0} and status == 0


def test_a_check_without_time_fails_and_is_counted(tmp_path):
    status, lines = run(tmp_path, "--only", "memory,probe", "--seconds", "1")
    assert [line["ok"] for line in lines[:-1]] == [False, False]
    assert lines[-1] == {"checks": 2, "failed": 2} and status == 1

"""Short soaks with faults that nobody chose: `make soak` and `make soak-nodes` are the long
ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
import hosts


def equal(tmp_path: Path, script: str, seconds: int, *more: str) -> None:
    """The soak says so; which losses it made and compared is in what it prints."""
    env = {**os.environ, "TMPDIR": str(tmp_path), "COLUMNS": "160"}
    command = [sys.executable, str(BENCHMARKS / script), "--seconds", str(seconds), *more]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=580)
    logs = [
        p
        for p in tmp_path.rglob("*")
        if "disturbed" in p.parts and (p.suffix == ".log" or p.name.startswith("output"))
    ]
    tail = "\n".join(f"== {p.name}\n{p.read_text()[-4000:]}" for p in sorted(logs))
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-3000:]}\n{tail}"
    assert "EQUAL" in done.stdout


def test_soak(tmp_path):
    equal(tmp_path, "soak.py", 5, "--ranks", "2")


# the undisturbed run takes half as long as the other one, where nothing else uses the cores
@pytest.mark.long
@pytest.mark.timeout(600)
def test_soak_over_nodes(tmp_path):
    if not hosts.possible():
        pytest.skip("network namespaces cannot be made here (root, ip)")
    equal(tmp_path, "soak_nodes.py", 20)

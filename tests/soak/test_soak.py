"""A short soak with faults that nobody chose: `make soak` is the long one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SOAK = Path(__file__).resolve().parents[2] / "benchmarks" / "soak.py"


def test_soak(tmp_path):
    env = {**os.environ, "TMPDIR": str(tmp_path), "COLUMNS": "160"}
    done = subprocess.run([sys.executable, str(SOAK), "--seconds", "8"], env=env, capture_output=True, text=True, timeout=280)
    logs = [p for p in tmp_path.rglob("*.log") if "disturbed" in p.parts]
    tail = "\n".join(f"== {p.name}\n{p.read_text()[-4000:]}" for p in sorted(logs))
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-3000:]}\n{tail}"
    assert "EQUAL" in done.stdout

"""Every benchmark that a document names still works: with --smoke it runs, prints its table and
writes its JSON. No figure is looked at."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
import hosts

# the others take seconds of both cores, each
SHORT = (
    "journal",
    "libtaskd",
    "paper",
    "report",
)
LONG = (
    "agents",
    "clusterd",
    "elastic",
    "large",
    "leaving",
    "memory",
    "messages",
    "metrics",
    "mindio",
    "nodes",
    "overhead",
    "parallel",
    "profiling",
    "recovery",
    "starts",
    "stopped",
    "trainers",
)
MINDSPORE = ("mindspore_repairs",)  # `make test-mindspore` runs it
ELSEWHERE = {"soak", "soak_nodes"}  # tests/soak
PARTS = {"curve", "fitted", "toy"}  # what the others train


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name",
    [*SHORT, *(pytest.param(n, marks=pytest.mark.long) for n in (*LONG, *MINDSPORE))],
)
def test_it_runs(name, tmp_path):
    if name in ("elastic", "nodes") and not hosts.possible():
        pytest.skip("network namespaces cannot be made here (root, ip)")
    framework = "mindspore" if name in MINDSPORE else "torch"
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed here")
    written = tmp_path / "figures.json"
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / f"{name}.py"), "--smoke", "--json", str(written)],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=580,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "load average" in done.stdout
    assert json.loads(written.read_text())["command"][1:] == ["--smoke", "--json", str(written)]


def test_all_that_documents_name_are_run():
    texts = [ROOT / "Makefile", ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    place = r"(?:(?<!tests/)benchmarks/|BENCH=\"?)(\w+)\.py"
    named = set(re.findall(place, "".join(p.read_text() for p in texts)))
    known = {*SHORT, *LONG, *MINDSPORE, *ELSEWHERE}
    assert named - PARTS <= known
    assert known <= named

"""Copies of torch to patch."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from taskd.adaptor import patching
from tests.adaptor.torch_copies import FAKE, shadow

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def torch() -> Path:
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0])


@pytest.fixture
def site(tmp_path, torch) -> Path:
    """A site-packages with a torch in it that works."""
    site = tmp_path / "site"
    shadow(torch, site / "torch", {"distributed"})
    shadow(torch / "distributed", site / "torch" / "distributed", {"run.py", "__pycache__"})
    source = patching.read((torch / "distributed" / "run.py").read_bytes()).plain
    (site / "torch" / "distributed" / "run.py").write_bytes(source)
    return site


@pytest.fixture
def fake(tmp_path) -> Path:
    """One that does not import: for what is refused before."""
    file = tmp_path / "fake" / "torch" / "distributed" / "run.py"
    file.parent.mkdir(parents=True)
    file.write_bytes(FAKE)
    return tmp_path / "fake"


@pytest.fixture
def importable(monkeypatch):
    """taskd can be imported by other interpreters."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

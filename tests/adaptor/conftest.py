"""Copies of torch to patch."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.adaptor.torch_copies import FAKE, copy

ROOT = Path(__file__).parents[2]


@pytest.fixture
def site(tmp_path) -> Path:
    """A site-packages with a torch in it that works."""
    copy(tmp_path / "site")
    return tmp_path / "site"


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

"""Undisturbed runs are made once and kept."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import training


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> training.References:
    return training.References(tmp_path_factory.getbasetemp())

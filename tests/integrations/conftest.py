"""Jobs of trainers are run as tests/recovery runs its own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "recovery")]
import training


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> training.References:
    return training.References(tmp_path_factory.getbasetemp())

"""Undisturbed runs are made once per session and kept."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import training


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., training.Result]:
    kept: dict[tuple, training.Result] = {}

    def get(world: int, script: str, *arguments: str) -> training.Result:
        key = (world, script, arguments)
        if key not in kept:
            kept[key] = training.undisturbed(tmp_path_factory.mktemp("undisturbed"), world, script, *arguments)
        return kept[key]

    return get

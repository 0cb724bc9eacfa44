"""Jobs over several hosts, which are network namespaces."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tests" / "recovery"), str(Path(__file__).parent)]
import hosts
import training


@pytest.fixture(scope="session", autouse=True)
def namespaces() -> None:
    if not hosts.possible():
        pytest.skip("network namespaces cannot be made here (root, ip)")


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory):
    kept: dict[tuple, training.Result] = {}

    def get(world: int, script: str, *arguments: str) -> training.Result:
        key = (world, script, arguments)
        if key not in kept:
            kept[key] = training.undisturbed(tmp_path_factory.mktemp("undisturbed"), world, script, *arguments)
        return kept[key]

    return get

"""Jobs over several hosts, which are network namespaces."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path[:0] = [
    str(ROOT / "benchmarks"),
    str(ROOT / "tests" / "recovery"),
    str(ROOT / "tests" / "integrations"),
    str(Path(__file__).parent),
]
import cluster
import hosts as lab
import training


@pytest.fixture
def hosts() -> Iterator[Callable[..., lab.Hosts]]:
    """Makes hosts, which are gone after the test."""
    if not lab.possible():
        pytest.skip("network namespaces cannot be made here (root, ip)")
    made: list[lab.Hosts] = []

    def make(count: int, **more: bool) -> lab.Hosts:
        made.append(lab.Hosts(count, **more))
        return made[-1].__enter__()

    yield make
    for one in made:
        one.__exit__()


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> training.Result:
    """Four ranks of steered.py, undisturbed."""
    return training.References(tmp_path_factory.getbasetemp())(4, "steered.py", cluster.STEPS)

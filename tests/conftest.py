"""Two workers share the tests (pytest-xdist): one has those that start jobs, one after the other, the other all the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent
JOBS = ("recovery", "soak", "cli/test_bad_input.py", "cli/test_demo.py", "docs")  # several processes that train, or wait for one another


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the marks in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Jobs never run beside each other: they would make each other slow, and two cores are few. They begin first, being longest."""

    def is_job(item: pytest.Item) -> bool:
        return any(item.path.is_relative_to(HERE / place) for place in JOBS)

    for item in items:
        if is_job(item):
            item.add_marker(pytest.mark.xdist_group("jobs"))
    items.sort(key=is_job, reverse=True)

"""Two workers share the tests (pytest-xdist): one has the jobs of tests/recovery, one after the other, the other all the rest."""

from __future__ import annotations

from typing import Any

import pytest

# Several processes that train, or wait for one another: never more than two such jobs beside each other, two cores are few.
JOBS = "tests/recovery/"
OTHER_JOBS = ("tests/nodes/", "tests/recovery/test_dump.py", "tests/soak/", "tests/cli/test_demo.py", "tests/cli/", "tests/docs/")


def place(nodeid: str) -> int:
    """Jobs begin first: they take longest."""
    if nodeid.startswith(OTHER_JOBS):
        return 1 + next(i for i, start in enumerate(OTHER_JOBS) if nodeid.startswith(start))
    return 0 if nodeid.startswith(JOBS) else 1 + len(OTHER_JOBS)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class JobsTogether(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "jobs" if place(nodeid) == 0 else nodeid.partition("::")[0]

    return JobsTogether(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: place(item.nodeid))

"""Two workers share the tests (pytest-xdist): one has those that start jobs, one after the other, the other all the rest."""

from __future__ import annotations

from typing import Any

import pytest

# Several processes that train, or wait for one another. They never run beside each other: two cores are few.
JOBS = ("tests/recovery/", "tests/soak/", "tests/docs/", "tests/cli/test_bad_input.py", "tests/cli/test_demo.py")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class JobsTogether(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "jobs" if nodeid.startswith(JOBS) else nodeid.partition("::")[0]

    return JobsTogether(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Jobs begin first: they take longest."""
    items.sort(key=lambda item: item.nodeid.startswith(JOBS), reverse=True)

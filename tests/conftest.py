"""Three workers share the tests (pytest-xdist): half of the time a job waits. What takes longest is
given out first, test by test, so that all end together."""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# where other processes use the cores an example takes ten times as long as alone
settings.register_profile("taskd", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# the same examples in each run of `make test`; `make test-all` draws new ones
settings.register_profile("ci", settings.get_profile("taskd"), derandomize=True)
settings.load_profile("taskd")

# Under nohup, or in the background of a script, these are ignored, and would be by all jobs here: a
# handler does as little, and whoever is started begins with the default.
for number in (signal.SIGHUP, signal.SIGINT):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, lambda *_: None)

# The size that /dev/shm has in a container, unless somebody asks for more
SHARED = b"64m"


def as_in_a_container() -> bool:
    """Mount a /dev/shm of a container's size, which this process and those that it starts see;
    return whether that was allowed."""
    new_mounts, private, recursive = 0x20000, 1 << 18, 1 << 14
    libc = ctypes.CDLL(None, use_errno=True)
    return (
        os.path.isdir("/dev/shm")
        and libc.unshare(new_mounts) == 0
        and libc.mount(None, b"/", None, private | recursive, None) == 0
        and libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"size=" + SHARED) == 0
    )


# once, for all workers: they share processes that fork jobs (lab/warm.py)
if "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ["TESTS_CONTAINED"] = "yes" if as_in_a_container() else ""
CONTAINED = bool(os.environ.get("TESTS_CONTAINED"))


def pytest_report_header() -> str:
    text = "the tests' own, of a container's size" if CONTAINED else "this machine's: not root"
    return f"/dev/shm: {text}"


# A job over several hosts is a dozen processes: one at a time, all on one worker. Beside it runs
# one of the other jobs, two cores are few.
HOSTS = ("tests/nodes/", "tests/soak/")
JOBS = ("tests/recovery/", "tests/mindio/", "tests/benchmarks/", "tests/cli/", "tests/docs/")


def place(nodeid: str) -> int:
    """In which order they are given out."""
    found = [i for i, start in enumerate((*HOSTS, *JOBS)) if nodeid.startswith(start)]
    return found[0] if found else len(HOSTS) + len(JOBS)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class LongestFirst(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if nodeid.startswith(HOSTS):
                return "hosts"
            return nodeid if nodeid.startswith("tests/recovery/") else nodeid.partition("::")[0]

    return LongestFirst(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: place(item.nodeid))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name what tests have drawn at random, so that a run can be repeated."""
    reports = [r for kind in ("passed", "failed") for r in terminalreporter.getreports(kind)]
    drawn = {v for r in reports for name, v in r.user_properties if name == "drawn"}
    if drawn:
        terminalreporter.section("drawn at random")
        for command in sorted(drawn):
            terminalreporter.write_line(command)

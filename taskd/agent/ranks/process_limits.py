"""What the kernel's limits do to processes: why no further one starts, and when memory has run
out."""

from __future__ import annotations

import contextlib
import errno
import math
import resource
from collections.abc import Iterator
from pathlib import Path

# of fork: a limit on processes and threads, or memory; both may pass when others end
PASSING = (errno.EAGAIN, errno.ENOMEM)
NEAR = 2  # what has ended since may be as many
CGROUPS = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
MEMORY = (("memory.events", "memory.max"), ("memory.oom_control", "memory.limit_in_bytes"))
UNLIMITED = 1 << 60  # bytes; cgroup 1 writes a number for no limit


def why(error: OSError) -> str:
    """Why a process could not be started, with the limit of this process that is to blame."""
    if error.errno != errno.EAGAIN:
        return f"could not be started: {error}"
    most = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    present, allowed = _of_cgroup()
    if present + NEAR >= allowed:
        limit = f"the container has {present} and may have {allowed} (pids.max)"
    elif most != resource.RLIM_INFINITY:
        limit = f"this user may have {most} (ulimit -u)"
    else:
        limit = "the system has no room for more (kernel.pid_max)"
    return (
        f"could not be started, too many processes and threads: {limit}; raise that, or start fewer"
        " ranks, loader workers or threads"
    )


def _of_cgroup() -> tuple[int, float]:
    """How many processes and threads this process's cgroup has, and may have."""
    for place in _cgroups("pids"):
        with contextlib.suppress(OSError, ValueError):  # ValueError: "max"
            most = int((place / "pids.max").read_text())
            return int((place / "pids.current").read_text()), most
    return 0, math.inf


class OutOfMemory:
    """Counts the processes that the kernel kills for want of memory in this process's cgroup, where
    the ranks and their children are, or on the machine if no cgroup counts them. Nothing else tells
    such a death from another SIGKILL."""

    def __init__(self) -> None:
        self._told = self._count()[0]

    def took_one(self) -> str:
        """Why a process is likely to have been killed, if the kernel has killed one that has not
        been reported yet; else "". The kernel counts before the process has ended."""
        killed, where = self._count()
        if killed <= self._told:
            return ""
        self._told += 1
        return f"by the kernel, because memory ran out {where}"

    def _count(self) -> tuple[int, str]:
        """How many so far, and where memory has run out."""
        for place in _cgroups("memory"):
            for count, limit in MEMORY:  # of cgroup 2, and of 1
                if (killed := _oom_kill(place / count)) is not None:
                    return killed, f"in its container{_may_have(place / limit)}"
        return _oom_kill(Path("/proc/vmstat")) or 0, "on the machine"


def _cgroups(kind: str) -> Iterator[Path]:
    """Where this process's limits of that kind may be."""
    with contextlib.suppress(OSError):
        for line in OWN.read_text().splitlines():
            _, kinds, path = line.split(":", 2)
            if kinds in ("", kind):
                # in a container the path may be that of the host
                yield from (CGROUPS / kinds / path.lstrip("/"), CGROUPS / kinds)


def _oom_kill(file: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        for line in file.read_text().splitlines():
            name, _, number = line.partition(" ")
            if name == "oom_kill":
                return int(number)
    return None


def _may_have(file: Path) -> str:
    with contextlib.suppress(OSError, ValueError):  # ValueError: "max"
        if (most := int(file.read_text())) < UNLIMITED:
            return f", which may have {most / 2**30:.1f} GiB"
    return ""

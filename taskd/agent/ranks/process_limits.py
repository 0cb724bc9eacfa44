"""Why the kernel starts no further process or thread."""

from __future__ import annotations

import contextlib
import errno
import math
import resource
from pathlib import Path

# of fork: a limit on processes and threads, or memory; both may pass when others end
PASSING = (errno.EAGAIN, errno.ENOMEM)
NEAR = 2  # what has ended since may be as many
CGROUPS = Path("/sys/fs/cgroup")


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
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, kinds, path = line.split(":", 2)
            if kinds not in ("", "pids"):
                continue
            # in a container the path may be that of the host
            for place in (CGROUPS / kinds / path.lstrip("/"), CGROUPS / kinds):
                with contextlib.suppress(OSError, ValueError):  # ValueError: "max"
                    most = int((place / "pids.max").read_text())
                    return int((place / "pids.current").read_text()), most
    return 0, math.inf

"""A rank's processor time, and how long it waited for a processor: from the kernel, so the rank
need not answer."""

from __future__ import annotations

import contextlib
from pathlib import Path

PROCESSES = 100  # most examined per rank: ~20 us for each thread


def spent(pid: int) -> tuple[float, float]:
    """Seconds on a processor, and runnable without one, of all threads of process `pid` and its
    descendants. 0 where unknown."""
    ran = waited = 0
    processes, found = [pid], {pid}
    while processes:
        for task in _tasks(processes.pop()):
            with contextlib.suppress(OSError, ValueError, IndexError):
                times = (task / "schedstat").read_text().split()
                ran, waited = ran + int(times[0]), waited + int(times[1])
            with contextlib.suppress(OSError, ValueError):
                new = {int(p) for p in (task / "children").read_text().split()} - found
                if len(found) < PROCESSES:
                    found |= new
                    processes += new
    return ran / 1e9, waited / 1e9


def _tasks(pid: int) -> list[Path]:
    if not pid:
        return []
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []

"""What a rank has had of the processors, and how long it waited for one: by the kernel's account,
so it needs no answer of the rank."""

from __future__ import annotations

import contextlib
from pathlib import Path

PROCESSES = 100  # of one rank that are looked at: a look takes ~20 us for each thread


def spent(pid: int) -> tuple[float, float]:
    """Seconds on a processor, and runnable without one, of process `pid` and all that it has
    started, all threads together. 0 where nothing can be known."""
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

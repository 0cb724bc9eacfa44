"""Lets newly started threads wake up slightly late, so that they do more work per wakeup.

ZeroMQ pings each agent by a timer of its own. With the kernel's usual slack of 50 µs a manager of
64 agents wakes up 160 times a second for that; with 25 ms, timers due within that time fire
together, and stay in phase. Arriving messages are not affected: slack is about timers alone.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

SLACK = 25_000_000  # ns; a sixteenth of the shortest time between two pings (protocol/pings.py)
DEFAULT = 0  # the kernel's word for the slack that a thread began with


@contextlib.contextmanager
def slack(nanoseconds: int = SLACK) -> Iterator[None]:
    """Give this thread that timer slack for a while; threads that it starts keep it."""
    path = Path(f"/proc/{threading.get_native_id()}/timerslack_ns")
    # without it (a kernel without CONFIG_PROC_FS, a sandbox) the manager wakes up more often
    with contextlib.suppress(OSError):
        path.write_text(str(nanoseconds))
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.write_text(str(DEFAULT))

"""gloo's threads, at the end of the process.

After a collective a gloo thread releases its tensors, for which it takes the GIL. If the
interpreter exits at that moment, Python before 3.14 ends the thread there, and unwinding it through
gloo's destructors aborts a process whose work was done. torch joins these threads when a group is
destroyed, but a group with new backends never is (communication/groups.py)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

NAME = "pt_gloo_runloop"
# longer than releasing any tensors takes; after it the process ends as it would without taskd
DEADLINE_SECONDS = 1.0
LOOK_SECONDS = 0.0005


def settle(idle: Callable[[], int] = lambda: 0) -> None:
    """Wait, for a second at most, until no gloo thread is running and no `idle` backend is still
    ending."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    quiet = 0
    # A thread that waits for the GIL sleeps too. It gets the GIL while this thread sleeps, and is
    # seen running the second time.
    while quiet < 2 and time.monotonic() < deadline:
        # no event to wait for: a destructor is ending
        time.sleep(LOOK_SECONDS)
        quiet = 0 if idle() or _at_work() else quiet + 1


def _at_work() -> bool:
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/stat") as file:
                stat = file.read()
        except OSError:  # it ended
            continue
        name, _, rest = stat.partition("(")[2].rpartition(")")
        if name == NAME and rest.split()[0] != "S":
            return True
    return False

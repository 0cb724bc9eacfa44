"""gloo's threads, at the end of the process.

After a collective a thread of gloo lets go of its tensors, for which it takes the interpreter's
lock. If the interpreter ends in that moment, Python before 3.14 ends the thread there, and
unwinding it through gloo's destructors aborts the process, whose work was done. torch joins these
threads when a group is destroyed, but a group with new backends never is
(communication/groups.py)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

NAME = "pt_gloo_runloop"
# longer than any tensors take; after it the process ends as it would without taskd
DEADLINE_SECONDS = 1.0
LOOK_SECONDS = 0.0005


def settle(idle: Callable[[], int] = lambda: 0) -> None:
    """Wait until no thread of gloo is at work and none of the `idle` backends is ending, for a
    second at most."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    quiet = 0
    # A thread that waits for the interpreter's lock sleeps too. It gets the lock while this one
    # sleeps, and is seen at work the second time.
    while quiet < 2 and time.monotonic() < deadline:
        # there is no event to wait for: what ends is a destructor
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

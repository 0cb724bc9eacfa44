"""Clocks: deadlines use the monotonic clock, the journal the wall clock."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from taskd.doctor.finding import Finding, error, ok, warning

SOURCE = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
# each reading is a system call and a device access, or has a resolution of 4 ms
SLOW = {"hpet", "acpi_pm", "jiffies", "refined-jiffies", "pit"}
# taskd was first released in 2026: an earlier clock has not been set
YEARS = range(2026, 2100)
COMPARED = "the logs of the nodes are compared by it"
READINGS = 200  # on each processor


def goes_forward(
    monotonic: Callable[[], int] = time.monotonic_ns,
    wall: Callable[[], int] = time.time_ns,
    processors: Iterable[int] | None = None,
) -> Finding:
    """Check that no clock goes back. Reads it on one processor after the other: if their counters
    differ, a thread that moves sees time go back."""
    name = "clock"
    year = time.gmtime(wall() / 1e9).tm_year
    before = os.sched_getaffinity(0)
    chosen = sorted(before) if processors is None else list(processors)
    back = {"monotonic": 0, "wall": 0}
    clocks = {"monotonic": monotonic, "wall": wall}
    last = {which: read() for which, read in clocks.items()}
    try:
        for processor in chosen:
            # the processor may be gone; only this thread moves
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, {processor})
            for _ in range(READINGS):
                for which, read in clocks.items():
                    now = read()
                    back[which] = max(back[which], last[which] - now)
                    last[which] = now
    finally:
        os.sched_setaffinity(0, before)
    if back["monotonic"]:
        text = (
            f"the monotonic clock goes back, by {back['monotonic']:,} ns: deadlines cannot be kept"
        )
        return error(
            name,
            text,
            "choose another clock source: the kernel's parameter clocksource=, or the hypervisor's"
            " setting",
        )
    if year not in YEARS:
        return warning(
            name, f"by the clock it is the year {year}", f"set it (chrony, ntpd): {COMPARED}"
        )
    if back["wall"]:
        text = f"the wall clock went back by {back['wall']:,} ns just now"
        return warning(name, text, f"let one service set it (chrony, ntpd), slowly: {COMPARED}")
    return ok(
        name,
        f"goes forward on {len(chosen)} {'processor' if len(chosen) == 1 else 'processors'}, in the"
        f" year {year}",
    )


def source(path: Path = SOURCE) -> Finding:
    name = "clock source"
    try:
        found = path.read_text().strip()
    except OSError:
        return ok(name, "not reported by this machine")
    if found in SLOW:
        remedy = "choose tsc or kvm-clock: the kernel's parameter clocksource="
        return warning(
            name, f"{found}: a step reads the time often, and this source is slow", remedy
        )
    return ok(name, found)

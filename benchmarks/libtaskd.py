"""The cost of libtaskd at the start of an interpreter and at every step.

    python benchmarks/libtaskd.py

Starts are interleaved, so that a busy moment of the machine affects all alike; prints the median.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import timeit
import uuid

import numpy as np
from arguments import Arguments
from figures import Figures, publish, summary

from taskd.cython_api import library_path, memory, slot
from taskd.cython_api.page import Page


def start(env: dict[str, str]) -> float:
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-S", "-c", "pass"], env=env, check=True)
    return (time.perf_counter() - begin) * 1e3


def starts(page: Page, count: int) -> dict[str, list[float]]:
    plain = {
        key: value
        for key, value in os.environ.items()
        if key != "LD_PRELOAD" and not key.startswith("TASKD_")
    }
    idle = {**plain, "LD_PRELOAD": library_path()}
    kinds = {
        "not preloaded": plain,
        "preloaded, no slot": idle,
        "preloaded, claims a slot": {**idle, "TASKD_PAGE": page.path, "TASKD_SLOT": "0"},
    }
    taken: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(count):
        for kind, env in kinds.items():
            page.reset(0)
            taken[kind].append(start(env))
    return taken


def calls(page: Page, number: int) -> dict[str, float]:
    """ns of each."""
    slot.attach(page.path, 1)
    names = {"slot": slot, "page": page}
    slot.started(1)
    found = {
        call: 1e9 * min(timeit.repeat(call, globals=names, number=number, repeat=5)) / number
        for call in (
            "slot.progress(5, 1)",
            "slot.interruption()",
            "slot.started(5)",
            "slot.wait_started(0, 0)",
            "page.read(1)",
        )
    }
    slot.detach()
    return found


def checksum(size: int) -> float:
    """GB/s."""
    data = np.ones(size << 20, np.uint8)
    best = min(
        timeit.repeat(lambda: memory.checksum(data.ctypes.data, data.nbytes), number=1, repeat=5)
    )
    return data.nbytes / best / 1e9


def main() -> None:
    parser = Arguments(__doc__)
    parser.size("--starts", 40, 1)
    parser.size("--calls", 500_000, 100)
    parser.size("--mib", 256, 1, help="of which the checksum is made")
    args = parser.parse_args()
    with Page.create(f"/dev/shm/taskd-benchmark-{uuid.uuid4().hex}", 2) as page:
        taken = starts(page, args.starts)
        page.reset(0)
    with Page.create(f"/dev/shm/taskd-benchmark-{uuid.uuid4().hex}", 2) as page:
        # both slots past the gate, so that wait_started is the usual case
        slot.attach(page.path, 0)
        slot.started(slot.ALL_DONE)
        slot.detach()
        found = calls(page, args.calls)
    speed = checksum(args.mib)
    table = Figures("libtaskd", "", "median or least", "more than not preloaded")
    base = summary(taken["not preloaded"])["median"]
    for kind, values in taken.items():
        median = summary(values)["median"]
        table.add_row(f"start of Python, {kind}", f"{median:.2f} ms", f"{median - base:+.2f}")
    for call, ns in found.items():
        table.add_row(call, f"{ns:.0f} ns", "")
    table.add_row(f"memory.checksum of {args.mib} MiB", f"{speed:.1f} GB/s", "")
    publish(args.json, table, starts=taken, calls=found, checksum=speed)


if __name__ == "__main__":
    main()

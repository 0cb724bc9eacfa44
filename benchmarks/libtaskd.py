"""The cost of libtaskd at the start of an interpreter and at every step.

    python benchmarks/libtaskd.py

Starts are interleaved, so that a busy moment of the machine affects all alike; prints the median.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
import timeit
import uuid

import numpy as np

from taskd.cython_api import library_path, memory, slot
from taskd.cython_api.page import Page

STARTS = 40


def start(env: dict[str, str]) -> float:
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-S", "-c", "pass"], env=env, check=True)
    return (time.perf_counter() - begin) * 1e3


def starts(page: Page) -> None:
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
    for _ in range(STARTS):
        for kind, env in kinds.items():
            page.reset(0)
            taken[kind].append(start(env))
    base = statistics.median(taken["not preloaded"])
    for kind, values in taken.items():
        median = statistics.median(values)
        print(f"start of Python, {kind:<26} {median:8.2f} ms  {median - base:+.2f}")


def calls(page: Page) -> None:
    slot.attach(page.path, 1)
    names = {"slot": slot, "page": page}
    slot.started(1)
    for call in (
        "slot.progress(5, 1)",
        "slot.interruption()",
        "slot.started(5)",
        "slot.wait_started(0, 0)",
        "page.read(1)",
    ):
        n = 500_000
        best = min(timeit.repeat(call, globals=names, number=n, repeat=5)) / n
        print(f"{call:<43} {best * 1e9:8.0f} ns")
    slot.detach()


def checksum() -> None:
    data = np.ones(256 << 20, np.uint8)
    best = min(
        timeit.repeat(lambda: memory.checksum(data.ctypes.data, data.nbytes), number=1, repeat=5)
    )
    print(f"{'memory.checksum of 256 MiB':<43} {data.nbytes / best / 1e9:8.1f} GB/s")


def main() -> None:
    with Page.create(f"/dev/shm/taskd-benchmark-{uuid.uuid4().hex}", 2) as page:
        starts(page)
        page.reset(0)
    with Page.create(f"/dev/shm/taskd-benchmark-{uuid.uuid4().hex}", 2) as page:
        # both slots past the gate, so that wait_started is the usual case
        slot.attach(page.path, 0)
        slot.started(slot.ALL_DONE)
        slot.detach()
        calls(page)
    checksum()


if __name__ == "__main__":
    main()

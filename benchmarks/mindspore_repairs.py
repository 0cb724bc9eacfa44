"""How long MindSpore's own Model.train and TrainFaultTolerance need after a fault, with taskd as
mindio_ttp, under an unmodified msrun.

    python benchmarks/mindspore_repairs.py [--kills 20] [--jobs 5]

- *rank*: a random rank of three is killed by SIGKILL and only that rank is started again, by the
  zygote or, with the zygote killed before, by msrun; to the end of the next step of all ranks.
- *memory*: a rank raises a memory fault (UCE); to the end of the next step of all ranks, in
  PyNative and in graph mode.
- *checkpoint*: a rank is killed; to the complete checkpoint of the last step.

The device is substituted as in tests/mindspore/test_fault_tolerance.py. Needs mindspore: run it
with the Python that `make test-mindspore` made.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "mindspore"))
from launching import LIMIT, Launch, train

RANKS, STEPS = 3, 6000
Rows = list[tuple[int, float]]  # process and time of each step


def rows(job: Launch, rank: int) -> Rows:
    return [(pid, float(result.split()[1])) for pid, _, result in job.steps(rank)]


def until(job: Launch, what: Callable[[], float | None]) -> float:
    due = time.monotonic() + LIMIT
    while time.monotonic() < due:
        if (found := what()) is not None:
            return found
        time.sleep(0.005)
    raise SystemExit(f"not within {LIMIT:.0f} s: {job.output[-2000:]}")


def after(job: Launch, then: float, rank: int = 0, old: int = 0) -> float | None:
    """When all ranks had done a step after `then`, and `rank` one in another process than `old`;
    None: not yet."""
    found = [
        next((t for pid, t in rows(job, r) if t > then and (r != rank or pid != old)), None)
        for r in range(job.workers)
    ]
    return None if None in found else max(t for t in found if t is not None)


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])


def zygote(job: Launch) -> int | None:
    """Its pid."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            pid = int(path.parent.name)
            if parent(pid) == job.process.pid and b"taskd.agent.ranks.zygote" in path.read_bytes():
                return pid
    return None


def ready(job: Launch) -> float | None:
    text = (job.folder / "taskd_log" / "agent-0.log").read_text(errors="replace")
    return 0.0 if text.count("zygote is ready") > text.count("the zygote has ended") else None


def ranks(kills: int, dice: random.Random) -> dict[str, list[float]]:
    """Alternating: by the zygote, and by msrun; the new process's parent tells which it was."""
    found: dict[str, list[float]] = {"forked by the zygote": [], "started by msrun": []}
    with tempfile.TemporaryDirectory() as folder:
        job = train(
            Path(folder),
            RANKS,
            "{TTP:1,UCE:1,ARF:1}",
            STEPS,
            "pynative",
            ENABLE_RESTART_FAULT_PROCESS="on",
        )
        try:
            until(job, lambda: after(job, 0.0))
            for kill in range(2 * kills):
                until(job, lambda: ready(job))
                if kill % 2 and (pid := zygote(job)) is not None:
                    os.kill(pid, signal.SIGKILL)
                time.sleep(0.5 + dice.random() / 2)
                rank = dice.randrange(RANKS)
                old, then = rows(job, rank)[-1][0], time.time()
                os.kill(old, signal.SIGKILL)
                done = until(job, lambda t=then, r=rank, o=old: after(job, t, r, o))
                msrun = parent(rows(job, rank)[-1][0]) == job.process.pid
                found["started by msrun" if msrun else "forked by the zygote"].append(done - then)
        finally:
            job.process.terminate()
            job.close()
    return found


def memory(mode: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        tft = "{TTP:1,UCE:1,ARF:1}" if mode == "pynative" else "{UCE:1}"
        job = train(Path(folder), 2, tft, 40, mode, "uce", 1, 10)
        fault = job.folder / "fault"
        try:
            then = until(
                job, lambda: float(fault.read_text() or 0) or None if fault.exists() else None
            )
            return until(job, lambda: after(job, then)) - then
        finally:
            job.close()


def checkpoint() -> float:
    with tempfile.TemporaryDirectory() as folder:
        job = train(Path(folder), RANKS, "{TTP:1}", STEPS, "pynative")

        def complete() -> float | None:
            made = (job.folder / "checkpoints").glob("ttp_saved*")
            return next((time.time() for p in made if not p.name.endswith("_tmp")), None)

        try:
            until(job, lambda: None if len(rows(job, 1)) < 10 else 0.0)
            then = time.time()
            os.kill(rows(job, 1)[-1][0], signal.SIGKILL)
            return until(job, complete) - then
        finally:
            job.process.terminate()
            job.close()


def show(name: str, times: list[float]) -> None:
    print(
        f"{name}: {len(times)}, median {statistics.median(times) * 1e3:.0f} ms,"
        f" {min(times) * 1e3:.0f} to {max(times) * 1e3:.0f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    for how, times in ranks(asked.kills, random.Random(asked.seed)).items():
        show(f"a rank killed, {how}", times)
    for mode in ("pynative", "graph"):
        show(f"a memory fault, {mode}", [memory(mode) for _ in range(asked.jobs)])
    saved = [checkpoint() for _ in range(asked.jobs)]
    show("a rank killed, to the complete checkpoint", saved)


if __name__ == "__main__":
    main()

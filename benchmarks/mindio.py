"""How long a job needs after a kill whose script is written against mindio_ttp, beside the same
model under taskd.protect.

    python benchmarks/mindio.py [--kills 20]

Four ranks, data parallel 2 x model parallel 2, gloo. A random rank is killed by SIGKILL while all
train; the two jobs take turns. From the kill to the next step of the last rank.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ports import free_port

from taskd.adaptor.mindio import alias

HERE = Path(__file__).parent
PRETRAIN = HERE.parent / "tests" / "mindio" / "scripts" / "pretrain.py"
PROTECTED = HERE / "mindio_jobs" / "protected.py"
RANKS, LIMIT = 4, 60.0


class Job:
    def __init__(self, folder: Path, *command: str) -> None:
        self.out = folder
        alias.install(folder)
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("TASKD_", "MINDX"))}
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "taskd.cli", "run", "--port", str(free_port())),
                *("--log-path", str(folder / "log"), f"--nproc_per_node={RANKS}", *command),
            ],
            env={**clean, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(folder)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def times(self, rank: int) -> list[float]:
        path = self.out / f"losses-{rank}"
        rows = path.read_text().splitlines() if path.exists() else []
        return [float(r.split()[2]) for r in rows if len(r.split()) == 3]

    def after(self, then: float) -> float:
        """When the last rank has done a step after `then`."""
        due = time.monotonic() + LIMIT
        while time.monotonic() < due:
            found = [[t for t in self.times(rank)[-400:] if t > then] for rank in range(RANKS)]
            if all(len(times) > 1 for times in found):
                return max(times[0] for times in found)
            time.sleep(0.05)
        raise SystemExit("the job does not go on")

    def kill(self, rank: int) -> float:
        """Seconds from the kill to the next step of all ranks."""
        file = self.out / f"pid-{rank}"
        old, then = file.read_text(), time.time()
        os.kill(int(old), signal.SIGKILL)
        due = time.monotonic() + LIMIT
        while time.monotonic() < due:
            # a process writes its pid before its first step
            if file.read_text() not in ("", old):
                return self.after(file.stat().st_mtime) - then
            time.sleep(0.02)
        raise SystemExit("the killed rank does not come back")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    dice = random.Random(asked.seed)
    found: dict[str, list[float]] = {"protect": [], "mindio_ttp": []}
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        jobs = {
            "protect": Job(Path(one), str(PROTECTED), "2", one),
            "mindio_ttp": Job(Path(two), str(PRETRAIN), "2", "2", str(10**9), two),
        }
        try:
            for job in jobs.values():
                job.after(0.0)
            for _ in range(asked.kills):
                for name, job in jobs.items():
                    time.sleep(1.0 + dice.random())
                    found[name].append(job.kill(dice.randrange(RANKS)))
        finally:
            for job in jobs.values():
                job.process.terminate()
                job.process.wait()
    for name, times in found.items():
        print(
            f"{name}: {len(times)} kills, median {statistics.median(times) * 1e3:.0f} ms,"
            f" {min(times) * 1e3:.0f} to {max(times) * 1e3:.0f}"
        )
    ratio = statistics.median(found["mindio_ttp"]) / statistics.median(found["protect"])
    print(f"ratio of the medians: {ratio:.2f}")


if __name__ == "__main__":
    main()

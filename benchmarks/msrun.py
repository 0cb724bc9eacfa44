"""How long MindSpore's ranks need after a kill, under an unmodified msrun with taskd.

    python benchmarks/msrun.py [--ranks 4] [--kills 20]

A random rank is killed while all train; taskd restarts all ranks on the same scheduler. From the
SIGKILL to the end of the first step of the last rank, import of MindSpore included. Plain msrun
starts nothing again. Needs mindspore: run it with the Python that `make test-mindspore` made.
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

LIMIT = 90.0  # seconds
BIN = Path(sys.executable).parent
TRAIN = """
import os, time
import numpy as np, mindspore
from mindspore import Tensor, ops
from mindspore.communication import get_rank, init
mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
mindspore.set_device("CPU")
init()
rank, reduce = get_rank(), ops.AllReduce()
while True:
    reduce(Tensor(np.ones(1, np.float32))).asnumpy()
    with open(f"steps.{rank}", "a") as file:
        file.write(f"{os.getpid()} {time.time()}\\n")
    time.sleep(0.05)
"""
MANAGER = """
from taskd.api import init_taskd_manager, start_taskd_manager
init_taskd_manager({"job_id": None, "node_nums": 1, "proc_per_node": RANKS})
start_taskd_manager()
"""


def rows(folder: Path, rank: int) -> list[tuple[int, float]]:
    path = folder / f"steps.{rank}"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(int(line.split()[0]), float(line.split()[1])) for line in lines]


def new(folder: Path, ranks: int, old: set[int]) -> list[tuple[int, float]]:
    """Each rank's first step by a process that is not in `old`; waits for it."""
    due = time.monotonic() + LIMIT
    while time.monotonic() < due:
        found = [[r for r in rows(folder, rank) if r[0] not in old] for rank in range(ranks)]
        if all(len(steps) > 2 for steps in found):
            return [steps[0] for steps in found]
        time.sleep(0.02)
    raise SystemExit(f"not all ranks train after {LIMIT:.0f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--kills", type=int, default=20)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(TRAIN)
        (folder / "manager.py").write_text(MANAGER.replace("RANKS", str(args.ranks)))
        environment = {
            **os.environ,
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
            "GLOG_v": "3",
            "TASKD_PORT": str(free_port()),
            "TASKD_PROCESS_ENABLE": "on",
            "TASKD_LOG_STDOUT": "FALSE",
            "MS_ENABLE_TFT": "{RSC:1}",
        }
        quiet = {"cwd": folder, "env": environment, "stdout": subprocess.DEVNULL}
        manager = subprocess.Popen([sys.executable, "manager.py"], **quiet)
        command = [f"--worker_num={args.ranks}", f"--local_worker_num={args.ranks}"]
        command += [f"--master_port={free_port()}", "--log_dir=log", "--join=True", "train.py"]
        launcher = subprocess.Popen(
            [str(BIN / "msrun"), *command], **quiet, stderr=subprocess.DEVNULL
        )
        try:
            seconds, old = [], set()
            for _ in range(args.kills):
                pids = [pid for pid, _ in new(folder, args.ranks, old)]
                old |= set(pids)
                time.sleep(random.random() / 2)
                killed = time.time()
                os.kill(random.choice(pids), signal.SIGKILL)
                seconds.append(max(at for _, at in new(folder, args.ranks, old)) - killed)
        finally:
            launcher.terminate()
            launcher.wait(60)
            manager.wait(60)
    print(
        f"{args.ranks} ranks, {len(seconds)} kills, all repaired: median"
        f" {statistics.median(seconds):.2f} s, min {min(seconds):.2f}, max {max(seconds):.2f}"
    )


if __name__ == "__main__":
    main()

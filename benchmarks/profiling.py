"""What light profiling costs: the step time of one job, while all ranges are switched on and off by
turns.

    python benchmarks/profiling.py [--ranks 2] [--turns 8] [--seconds 6] [--nap 0.02]

One job under `taskd run`, a small DDP model and `--nap` seconds of other work in each step;
profiling is switched by `taskd.control` every few seconds. Each rank writes how long its steps have
taken. The median step of each turn is compared with those of its two neighbors, so that what the
machine does besides affects both.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from figures import Figures
from ports import free_port
from rich.console import Console

from taskd.control import Control
from taskd.messages.to_rank import RANGES

SCRIPT = """
import sys, time, torch, torch.distributed as dist, taskd
from pathlib import Path
from torch.nn.parallel import DistributedDataParallel as DDP
torch.set_num_threads(1)
dist.init_process_group("gloo")
out, nap = Path(sys.argv[1]), float(sys.argv[2])
net = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(20)])
model = DDP(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
job = taskd.protect(model=model, optimizer=optimizer)
x = torch.randn(16, 64)
with open(out / f"steps-{dist.get_rank()}", "w", buffering=1 << 16) as file:
    for attempt in job.steps(10**9):
        with attempt:
            begin = time.perf_counter()
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            end = time.monotonic() + nap
            while time.monotonic() < end:
                pass
        print(time.monotonic(), time.perf_counter() - begin, file=file)
        if attempt.step % 50 == 0:
            file.flush()
            if (out / "stop").exists():
                break
"""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--nap", type=float, default=0.02)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="taskd-profiling-"))
    (folder / "train.py").write_text(SCRIPT)
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "TASKD_PORT": str(free_port()),
        "TASKD_LOG_PATH": str(folder / "log"),
        "TASKD_PROFILING_PATH": str(folder / "profiles"),
        "MINDX_TASK_ID": "bench",
    }
    command = [sys.executable, "-c", "from taskd.cli import main; main()", "run"]
    command += ["--nproc_per_node", str(arguments.ranks), str(folder / "train.py")]
    command += [str(folder), str(arguments.nap)]
    turns: list[tuple[float, float, bool]] = []
    with open(folder / "output", "w") as output:
        job = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    try:
        while not (folder / "steps-0").exists() or not (folder / "steps-0").stat().st_size:
            if job.poll() is not None:
                raise SystemExit((folder / "output").read_text())
            time.sleep(0.2)
        time.sleep(3.0)  # past the first steps
        with Control(environment) as control:
            for turn in range(2 * arguments.turns + 1):
                on = turn % 2 == 1
                control.profile(range(len(RANGES)) if on else ())
                time.sleep(1.0)  # the switch itself, and DDP's first backward, are not measured
                begin = time.monotonic()
                time.sleep(arguments.seconds)
                turns.append((begin, time.monotonic(), on))
        (folder / "stop").touch()
        job.wait(60)
    finally:
        if job.poll() is None:
            job.terminate()
            job.wait()
    steps = [
        tuple(map(float, line.split()))
        for line in (folder / "steps-0").read_text().splitlines()
        if line.count(" ") == 1
    ]
    medians = [
        statistics.median(took for at, took in steps if begin <= at <= end)
        for begin, end, _ in turns
    ]
    ratios = [medians[n] / ((medians[n - 1] + medians[n + 1]) / 2) for n in range(1, len(turns), 2)]
    written = sum(f.stat().st_size for f in (folder / "profiles").rglob("*") if f.is_file())
    recorded = arguments.seconds * arguments.turns * arguments.ranks
    table = Figures("light profiling, all ranges", "", "median", "least", "most", words=1)
    off = [m for m, (_, _, on) in zip(medians, turns, strict=True) if not on]
    on_ = [m for m, (_, _, on) in zip(medians, turns, strict=True) if on]
    for name, values in (("a step, off, ms", off), ("a step, on, ms", on_)):
        shown = (statistics.median(values), min(values), max(values))
        table.add_row(name, *(f"{1e3 * v:.2f}" for v in shown))
    shown = (statistics.median(ratios), min(ratios), max(ratios))
    table.add_row("on / off, %", *(f"{100 * v:.2f}" for v in shown))
    table.add_row("written, kB a second and rank", f"{written / recorded / 1e3:.1f}", "", "")
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())

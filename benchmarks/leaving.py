"""How long a job takes to leave: from SIGTERM to the end of its launcher, with the state saved; and
how long it takes the next start to go on; and what a dump costs a job that trains on.

    python benchmarks/leaving.py [--ranks 4] [--rounds 5] [--mib 1 64 512]

`--mib`: the size of the model; Adam's state is twice as much. torchrun's launcher ends its ranks on
SIGTERM and saves nothing. "written" is the size of the dump, divided by the time that it takes to
write, sync and read back so much beside it, as taskd's own estimate does. The target: 1 s, a step
(0.05 s), and that time. Of a dump beside training (`taskd dump`, three in a run): from the request
until it is on disk, and how much longer than the median of ten steps before it rank 0's longest
step was, and the median of its steps, until then. Clock: time.monotonic.
"""

from __future__ import annotations

import signal
import tempfile
import time
from bisect import bisect
from itertools import pairwise
from pathlib import Path
from statistics import median

from arguments import Arguments
from figures import Figures, publish, summary
from jobs import Run

from taskd.control import Control
from taskd.worker.dump import estimating

SCRIPT = """
import os, sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
import taskd
torch.set_num_threads(1)
dist.init_process_group("gloo")
os.chdir(sys.argv[2])  # --out DIRECTORY
rank, width = dist.get_rank(), int((float(os.environ["MIB"]) * 2**20 / 4 / 8) ** 0.5)
layers = [torch.nn.Linear(width, width, bias=False) for _ in range(8)]
model = DDP(torch.nn.Sequential(*layers))
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
job = taskd.protect(model=model, optimizer=optimizer)
times = open(f"times-{rank}", "a", buffering=1)
for attempt in job.steps(10**6):
    with attempt as step:
        model(torch.ones(1, width)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.05)
    with open(f"step-{rank}.new", "w") as file:
        file.write(f"{step} {time.monotonic()}")
    os.rename(f"step-{rank}.new", f"step-{rank}")
    print(time.monotonic(), file=times)
"""
LIMIT = 300.0  # seconds; a run takes 5 to 60
STEPS = 6  # until the signal: the optimizer has its state, and the estimate is made


def begin(folder: Path, ranks: int, mib: float, taskd: bool) -> Run:
    options = ("--resume", "auto", "--grace-period", "600") if taskd else ()
    more = {"MIB": str(mib), "TASKD_DUMP_PATH": str(folder / "dumps")}
    return Run(folder, ranks, taskd, folder / "train.py", options=options, **more)


def until(folder: Path, ranks: int, steps: int) -> float:
    """When the last rank has finished so many steps, in this process."""
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        found = [(folder / f"step-{rank}") for rank in range(ranks)]
        if all(path.exists() for path in found):
            reached = [path.read_text().split() for path in found]
            if all(int(step) >= steps for step, _ in reached):
                return max(float(at) for _, at in reached)
        time.sleep(0.02)
    raise TimeoutError(f"the ranks in {folder} do not train")


def measure(ranks: int, mib: float, taskd: bool) -> dict[str, float]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        folder = Path(place)
        (folder / "train.py").write_text(SCRIPT)
        with begin(folder, ranks, mib, taskd) as run:
            until(folder, ranks, STEPS)
            asked = time.monotonic()
            run.process.send_signal(signal.SIGTERM)
            run.process.wait(LIMIT)
            found = {"left": time.monotonic() - asked}
        if not taskd:
            return found
        assert run.process.returncode == 75, (folder / "output").read_text()[-3000:]
        (dump,) = (folder / "dumps").iterdir()
        size = sum(path.stat().st_size for path in dump.rglob("*") if path.is_file())
        found["MB"] = size / 1e6
        found["written"] = size / estimating.measure(dump, min(size, estimating.SAMPLE))
        for path in folder.glob("step-*"):
            path.unlink()
        began = time.monotonic()
        with begin(folder, ranks, mib, taskd) as run:
            found["resumed"] = until(folder, ranks, 0) - began
            run.process.kill()
            run.process.wait(LIMIT)
        return found


def beside(ranks: int, mib: float) -> dict[str, float]:
    """Medians of three dumps in one job."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        folder = Path(place)
        (folder / "train.py").write_text(SCRIPT)
        found: dict[str, list[float]] = {"saved": [], "longest": [], "steps": []}
        with begin(folder, ranks, mib, True) as run, Control(run.environment) as control:
            for dump in range(3):
                until(folder, ranks, (dump + 1) * 3 * STEPS)
                asked = time.monotonic()
                control.dump()
                found["saved"].append(time.monotonic() - asked)
                time.sleep(1.0)  # the steps until then are written down
                ends = [float(at) for at in (folder / "times-0").read_text().split()]
                last = bisect(ends, asked), bisect(ends, asked + found["saved"][-1]) + 1
                steps = [after - before for before, after in pairwise(ends)]
                usual, during = (
                    median(steps[last[0] - 11 : last[0] - 1]),
                    steps[last[0] - 1 : last[1]],
                )
                found["longest"].append(max(during) - usual)
                found["steps"].append(median(during) - usual)
            run.process.kill()
            run.process.wait(LIMIT)
        return {name: median(values) for name, values in found.items()}


def main() -> None:
    parser = Arguments(__doc__)
    parser.size("--ranks", 4, 2)
    parser.size("--rounds", 5, 1)
    parser.add_argument("--mib", type=float, nargs="*", default=[1, 64, 512])
    args = parser.parse_args()
    sizes = [1.0] if args.smoke else args.mib
    runs: dict[str, list[dict[str, float]]] = {}
    for _ in range(args.rounds):
        for mib in sizes:
            for name, taskd in ((f"torchrun, {mib:g} MiB", False), (f"taskd, {mib:g} MiB", True)):
                runs.setdefault(name, []).append(measure(args.ranks, mib, taskd))
    table = Figures(
        f"{args.ranks} ranks, {args.rounds} rounds; seconds, median (worst)",
        "launcher and model",
        "signal to end",
        "saved, MB",
        "written in",
        "start to the first step after resuming",
    )
    for name, found in runs.items():
        cells = []
        for key in ("left", "MB", "written", "resumed"):
            values = summary([row[key] for row in found if key in row])
            shown = f"{values['median']:.2f} ({values['worst']:.2f})" if key in found[0] else ""
            cells.append(shown)
        table.add_row(name, *cells)
    dumps = Figures(
        "a dump beside training; seconds, median (worst)",
        "model",
        "request to saved",
        "longest step: longer by",
        "median step: longer by",
    )
    for mib in sizes:
        found = [beside(args.ranks, mib) for _ in range(args.rounds)]
        runs[f"beside, {mib:g} MiB"] = found
        values = [summary([row[key] for row in found]) for key in found[0]]
        dumps.add_row(f"{mib:g} MiB", *(f"{v['median']:.3f} ({v['worst']:.3f})" for v in values))
    publish(args.json, table, dumps, runs=runs)


if __name__ == "__main__":
    main()

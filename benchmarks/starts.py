"""How long a job takes to start and to restart all ranks: torchrun, and taskd with forked or fresh
ranks.

    python benchmarks/starts.py [--ranks 4] [--rounds 5]

The script protects nothing, so a failed rank restarts all. The time runs from the launcher's start,
and from a rank's end, until the last rank has finished its first all-reduce. The launchers
alternate. Clock: time.monotonic, which is the same in all processes of a machine.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from pathlib import Path

from arguments import Arguments
from figures import Figures, publish, summary
from jobs import Run

SCRIPT = """
import os, sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("gloo")
model = DDP(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
model(torch.ones(1, 8)).sum().backward()
optimizer.step()
os.chdir(sys.argv[2])  # --out DIRECTORY
life, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
open(f"step-{life}-{rank}", "w").write(str(time.monotonic()))
dist.barrier()
if life == "0":
    if rank == "1":
        open("ends", "w").write(str(time.monotonic()))
        os._exit(1)
    time.sleep(60)
dist.destroy_process_group()
"""
LIMIT = 120.0  # seconds; a run takes 5 to 15
LAUNCHERS: dict[str, dict[str, str] | None] = {
    "torchrun": None,
    "taskd, forked": {"TASKD_FORK": "on"},
    "taskd, not forked": {"TASKD_FORK": "off"},
}


def measure(variables: dict[str, str] | None, ranks: int) -> tuple[float, float] | None:
    """Seconds to start, seconds to restart. None: the restart never ended."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "train.py").write_text(SCRIPT)
        options = ["--max-restarts", "5", "--monitor-interval", "0.1"]
        began, taskd = time.monotonic(), variables is not None
        script, more = folder / "train.py", variables or {}
        with Run(folder, ranks, taskd, script, options=options if taskd else (), **more) as run:
            try:
                if run.process.wait(LIMIT) != 0:
                    return None
            except subprocess.TimeoutExpired:
                return None
        last = max(int(p.name.split("-")[1]) for p in folder.glob("step-*-0"))
        steps = [
            max(float((folder / f"step-{life}-{r}").read_text()) for r in range(ranks))
            for life in (0, last)
        ]
        return steps[0] - began, steps[1] - float((folder / "ends").read_text())


def main() -> None:
    parser = Arguments(__doc__)
    parser.size("--ranks", 4, 2)
    parser.size("--rounds", 5, 1)
    args = parser.parse_args()
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in LAUNCHERS}
    for _ in range(args.rounds):
        for name, variables in LAUNCHERS.items():
            if (times := measure(variables, args.ranks)) is not None:
                found[name].append(times)
    table = Figures(
        f"{args.ranks} ranks, {args.rounds} rounds; seconds, median (worst)",
        "launcher",
        "start",
        "restart of all ranks",
        "ratio",
        "failed",
    )
    base = summary([restart for _, restart in found["torchrun"]])["median"]
    for name, rows in found.items():
        start, restart = (summary([row[i] for row in rows]) for i in (0, 1))
        cells = [f"{s['median']:.2f} ({s['worst']:.2f})" for s in (start, restart)]
        ratio = f"{restart['median'] / base:.2f}" if base and rows else ""
        table.add_row(name, *cells, ratio, str(args.rounds - len(rows)))
    publish(args.json, table, runs=found)


if __name__ == "__main__":
    main()

"""How long a job takes to start and to restart all ranks: torchrun, and taskd with forked or fresh
ranks.

    python benchmarks/starts.py [--ranks 4] [--rounds 5]

The script protects nothing, so a failed rank restarts all. The time runs from the launcher's start,
and from a rank's end, until the last rank has finished its first all-reduce. The launchers
alternate. Clock: time.monotonic, which is the same in all processes of a machine.
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

SCRIPT = """
import os, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("gloo")
model = DDP(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
model(torch.ones(1, 8)).sum().backward()
optimizer.step()
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
LIMIT = 40.0  # seconds; a run takes 5 to 15
BIN = Path(sys.executable).parent
COMMANDS = {
    "torchrun": ([str(BIN / "torchrun")], {}),
    "taskd, forked": ([str(BIN / "taskd"), "run"], {"TASKD_FORK": "on"}),
    "taskd, not forked": ([str(BIN / "taskd"), "run"], {"TASKD_FORK": "off"}),
}


def measure(command: list[str], more: dict[str, str], ranks: int) -> tuple[float, float] | None:
    """Seconds to start, seconds to restart. None: the restart never ended, as happens under plain
    torchrun when gloo finds addresses of dead processes in the store."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "train.py").write_text(SCRIPT)
        own = {"TASKD_PORT": str(free_port()), "TASKD_LOG_PATH": str(folder / "log")}
        options = [
            "--max_restarts",
            "5",
            "--monitor-interval",
            "0.1",
            "--master_port",
            str(free_port()),
        ]
        began = time.monotonic()
        process = subprocess.Popen(
            [*command, "--nproc_per_node", str(ranks), *options, "train.py"],
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", **own, **more},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            if process.wait(LIMIT) != 0:
                return None
        except subprocess.TimeoutExpired:
            process.terminate()
            process.wait()
            return None
        last = max(int(p.name.split("-")[1]) for p in folder.glob("step-*-0"))
        steps = [
            max(float((folder / f"step-{life}-{r}").read_text()) for r in range(ranks))
            for life in (0, last)
        ]
        return steps[0] - began, steps[1] - float((folder / "ends").read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
    for _ in range(args.rounds):
        for name, (command, more) in COMMANDS.items():
            if (times := measure(command, more, args.ranks)) is not None:
                found[name].append(times)
    table = Figures(
        f"{args.ranks} ranks, {args.rounds} rounds; seconds, median (worst)",
        "launcher",
        "start",
        "restart of all ranks",
        "failed",
    )
    for name, rows in found.items():
        cells = (f"{statistics.median(c):.2f} ({max(c):.2f})" for c in zip(*rows, strict=True))
        table.add_row(name, *cells, str(args.rounds - len(rows)))
    Console().print(table)
    torch, forked = (statistics.median(r for _, r in found[n]) for n in list(found)[:2])
    print(f"restart, taskd forked / torchrun: {forked / torch:.2f}")


if __name__ == "__main__":
    main()

"""How long a job needs after a kill, or an exception of unknown cause, whose script is written
against mindio_ttp, beside the same model under taskd.protect; and what the calls around an update
cost.

    python benchmarks/mindio.py [--kills 20] [--exceptions 10]

Four ranks, data parallel 2 x model parallel 2, gloo. A random rank is killed by SIGKILL, or raises,
while all train; the two jobs take turns. From that moment to the next step of the last rank. The
calls: one rank, since the ranks of a node wait for each other in the first, and two.
"""

from __future__ import annotations

import json
import os
import random
import signal
import tempfile
import time
from pathlib import Path

from arguments import Arguments
from figures import Figures, publish, spread, summary
from jobs import Run
from records import HERE, at_random

from taskd.adaptor.mindio import alias

PRETRAIN = HERE.parent / "tests" / "mindio" / "scripts" / "pretrain.py"
PAIR = HERE / "mindio_pair.py"
RANKS = 4


class Job(Run):
    """The script says what it does in files of its own: a line for each step, and its pid."""

    def __init__(self, folder: Path, script: str | Path, *arguments: str) -> None:
        alias.install(folder)
        given = [*arguments, str(folder)]
        super().__init__(folder, RANKS, True, script, given, out=False, PYTHONPATH=str(folder))

    def after(self, then: float) -> float:
        """When the last rank has done a step after `then`."""

        def found() -> list[float]:
            first = []
            for rank in range(RANKS):
                path = self.directory / f"losses-{rank}"
                rows = path.read_text().splitlines()[-400:] if path.exists() else []
                times = [float(r.split()[2]) for r in rows if len(r.split()) == 3]
                first += [t for t in times if t > then][:1]
            return first if len(first) == RANKS else []

        return max(self.wait(found, "next step of all ranks"))

    def replaced(self, rank: int, how: str) -> float:
        """Seconds from a fault of the rank, "kill" or "raise", to the next step of all ranks."""
        file = self.directory / f"pid-{rank}"
        old, then = file.read_text(), time.time()
        if how == "kill":
            os.kill(int(old), signal.SIGKILL)
        else:
            mark = self.directory / f"raise-{rank}"
            mark.touch()
            self.wait(lambda: not mark.exists(), f"exception of rank {rank}")
            then = time.time()
        # a process writes its pid before its first step
        self.wait(lambda: file.read_text() not in ("", old), f"replacement of rank {rank}")
        return self.after(file.stat().st_mtime) - then


def pairs(ranks: int) -> dict[str, list[float]]:
    """Seconds of pairs of calls around an update, on rank 0 of a job of so many."""
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        alias.install(folder)
        with Run(folder, ranks, True, PAIR, [directory], out=False, PYTHONPATH=directory) as job:
            job.wait(lambda: job.process.poll() is not None, "end of the job")
        return dict(json.loads((folder / "pairs-0").read_text()))


def main() -> None:
    parser = Arguments(__doc__)
    parser.size("--kills", 20, 1)
    parser.size("--exceptions", 10, 1)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    dice = random.Random(args.seed)
    calls = {ranks: pairs(ranks) for ranks in (1, 2)}
    faults = {"kill": args.kills, "raise": args.exceptions}
    found: dict[str, dict[str, list[float]]] = {
        how: {"taskd.protect": [], "mindio_ttp": []} for how in faults
    }
    with (
        tempfile.TemporaryDirectory() as one,
        tempfile.TemporaryDirectory() as two,
        Job(Path(one), "mindio_protected.py", "2") as protected,
        Job(Path(two), PRETRAIN, "2", "2", str(10**9)) as mindio,
    ):
        jobs = {"taskd.protect": protected, "mindio_ttp": mindio}
        for job in jobs.values():
            job.after(0.0)
        for how, count in faults.items():
            for _ in range(count):
                for name, job in jobs.items():
                    at_random(dice, 1.0, 2.0)
                    found[how][name].append(job.replaced(dice.randrange(RANKS), how))
    heads = ("faults", "median", "least", "90 %", "worst")
    table = Figures("from a fault to the next step of all ranks, ms", "", *heads)
    for how, times in found.items():
        for name, taken in times.items():
            table.add_row(f"{how}, {name}", str(len(taken)), *spread(taken))
    cost = Figures("the two calls around an update, us", "", "median", "90 %")
    for ranks, taken in calls.items():
        for name, each in taken.items():
            ordered = sorted(each)
            shown = (ordered[len(each) // 2], ordered[len(each) * 9 // 10])
            cost.add_row(f"{ranks} ranks, {name}", *(f"{1e6 * one:.1f}" for one in shown))
    medians = {how: [summary(t)["median"] for t in times.values()] for how, times in found.items()}
    ratios = ", ".join(f"{how} {b / a:.2f}" for how, (a, b) in medians.items())
    publish(args.json, table, cost, f"ratios of the medians: {ratios}", faults=found)


if __name__ == "__main__":
    main()

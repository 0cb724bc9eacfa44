"""How long a job needs after a kill whose script is written against mindio_ttp, beside the same
model under taskd.protect.

    python benchmarks/mindio.py [--kills 20]

Four ranks, data parallel 2 x model parallel 2, gloo. A random rank is killed by SIGKILL while all
train; the two jobs take turns. From the kill to the next step of the last rank.
"""

from __future__ import annotations

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

    def replaced(self, rank: int) -> float:
        """Seconds from a kill of the rank to the next step of all ranks."""
        file = self.directory / f"pid-{rank}"
        old, then = file.read_text(), time.time()
        os.kill(int(old), signal.SIGKILL)
        # a process writes its pid before its first step
        self.wait(lambda: file.read_text() not in ("", old), f"replacement of rank {rank}")
        return self.after(file.stat().st_mtime) - then


def main() -> None:
    parser = Arguments(__doc__)
    parser.size("--kills", 20, 1)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    dice = random.Random(args.seed)
    found: dict[str, list[float]] = {"taskd.protect": [], "mindio_ttp": []}
    with (
        tempfile.TemporaryDirectory() as one,
        tempfile.TemporaryDirectory() as two,
        Job(Path(one), "mindio_protected.py", "2") as protected,
        Job(Path(two), PRETRAIN, "2", "2", str(10**9)) as mindio,
    ):
        jobs = dict(zip(found, (protected, mindio), strict=True))
        for job in jobs.values():
            job.after(0.0)
        for _ in range(args.kills):
            for name, job in jobs.items():
                at_random(dice, 1.0, 2.0)
                found[name].append(job.replaced(dice.randrange(RANKS)))
    heads = ("kills", "median", "least", "90 %", "worst")
    table = Figures("kill -9 to the next step of all ranks, ms", "", *heads)
    for name, times in found.items():
        table.add_row(name, str(len(times)), *spread(times))
    first, other = (summary(times)["median"] for times in found.values())
    publish(args.json, table, f"ratio of the medians: {other / first:.2f}", kills=found)


if __name__ == "__main__":
    main()

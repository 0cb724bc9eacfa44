"""What a kill costs in a trainer, and what protection costs while nothing fails.

    python benchmarks/trainers.py [--kills 10] [--rounds 3] [--json FILE]

1. The same model, batches and step in a loop by hand, in Lightning's Trainer and in transformers'
(benchmarks/fitted.py), under taskd run; random ranks are killed at random moments, and the time is
from the kill until every rank has committed the first step that the killed process did not.
2. Steps of about 100 ms with taskd and under plain torchrun without it, alternating: the median
step of each.
"""

from __future__ import annotations

import random
import shutil
import statistics
import tempfile
from pathlib import Path

from arguments import Arguments
from figures import Figures, publish
from jobs import Recovery, Run, recoveries
from overhead import WARM, Step, median_step

NAMES = {"none": "a loop by hand", "lightning": "Lightning", "transformers": "transformers"}
LARGE = 3500  # samples of a batch: a step of ~100 ms


def main() -> None:
    parser = Arguments(__doc__)
    parser.size("--ranks", 2, 2)
    parser.size("--kills", 10, 1, help="of each")
    parser.size("--rounds", 3, 1, help="of jobs with large steps")
    parser.size("--steps", 150, 20, help="of a job with large steps")
    args = parser.parse_args()
    dice, work = random.Random(0), Path(tempfile.mkdtemp(prefix="taskd-trainers-"))
    killed: dict[str, list[Recovery]] = {}
    for trainer, name in NAMES.items():
        told = ["--trainer", trainer]
        with Run(work / trainer, args.ranks, True, "fitted.py", told) as run:
            run.wait_for_steps(60)
            killed[name] = run.kills(args.kills, dice)
    steps: dict[tuple[str, bool], list[Step]] = {}
    for number in range(args.rounds):
        for trainer in NAMES:
            for taskd in (True, False):
                told = ["--trainer", trainer, "--batch", str(LARGE)]
                told += ["--steps", str(args.steps + WARM)]
                place = work / f"{trainer}-{number}-{taskd}"
                with Run(place, args.ranks, taskd, "fitted.py", told) as run:
                    run.finish()
                    steps.setdefault((trainer, taskd), []).append(
                        median_step([s.read(WARM) for s in run.steps])
                    )
    shutil.rmtree(work)
    publish(args.json, recoveries(killed), cost(steps), kills=killed)


def cost(steps: dict[tuple[str, bool], list[Step]]) -> Figures:
    out = Figures(
        "a step, ms: medians of the jobs' medians",
        "",
        "with taskd",
        "without",
        "more",
        "CPU with taskd",
        "without",
        "more",
    )
    for trainer, name in NAMES.items():
        cells = []
        for kind in ("clock", "cpu"):
            mine, plain = (
                statistics.median(getattr(s, kind) for s in steps[trainer, taskd])
                for taskd in (True, False)
            )
            cells += [f"{mine:.1f}", f"{plain:.1f}", f"{100 * (mine / plain - 1):+.1f} %"]
        out.add_row(name, *cells)
    return out


if __name__ == "__main__":
    main()

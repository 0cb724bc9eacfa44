"""What light profiling costs: the step time of one job, while all ranges are switched on and off by
turns.

    python benchmarks/profiling.py [--ranks 2] [--turns 8] [--seconds 6]

One job of benchmarks/toy.py under `taskd run`; profiling is switched by `taskd.control` every few
seconds. The median step of each turn is compared with those of its two neighbors, so that what the
machine does besides affects both.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from arguments import Arguments
from figures import Figures, publish, summary
from jobs import Run

from taskd.control import Control
from taskd.messages.to_rank import RANGES


def main() -> None:
    parser = Arguments(__doc__)
    parser.size("--ranks", 2, 1)
    parser.size("--turns", 8, 1)
    parser.size("--seconds", 6.0, 0.5)
    args = parser.parse_args()
    medians: list[float] = []
    with tempfile.TemporaryDirectory() as place:
        folder, profiles = Path(place), Path(place) / "profiles"
        with Run(folder, args.ranks, True, TASKD_PROFILING_PATH=str(profiles)) as run:
            run.wait_for_steps(60)
            with Control(run.environment) as control:
                for turn in range(2 * args.turns + 1):
                    control.profile(range(len(RANGES)) if turn % 2 else ())
                    time.sleep(1.0)  # the switch itself, and DDP's first backward
                    begin = time.monotonic_ns()
                    time.sleep(args.seconds)
                    medians.append(run.median_step(begin, time.monotonic_ns()))
        written = sum(f.stat().st_size for f in profiles.rglob("*") if f.is_file())
    off, on = medians[::2], medians[1::2]
    ratios = [2 * m / (a + b) for m, a, b in zip(on, off, off[1:], strict=False)]
    table = Figures("light profiling, all ranges", "", "median", "least", "most")
    for name, unit, values in (
        ("a step, off, ms", 1e3, off),
        ("a step, on, ms", 1e3, on),
        ("on / off, %", 100, ratios),
    ):
        found = summary(values)
        table.add_row(name, *(f"{unit * found[k]:.2f}" for k in ("median", "least", "worst")))
    # on for a second more in each turn than it is measured
    recorded = (args.seconds + 1.0) * args.turns * args.ranks
    table.add_row("written, kB a second and rank", f"{written / recorded / 1e3:.1f}", "", "")
    publish(args.json, table, off=off, on=on)


if __name__ == "__main__":
    main()

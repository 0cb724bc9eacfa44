"""The time from kill -9 of one rank until all ranks train on, for ways of training in parallel
beside DDP, in one run.

    python benchmarks/parallel.py [--kills N] [--every K] [--json FILE]

One job of benchmarks/sharded.py for each way, in rounds, so that a busy moment of the machine
affects all of them. Exit status 1 if a step was lost that was recorded, a survivor was replaced, or
a job failed.
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path

from arguments import Arguments
from figures import publish
from jobs import Recovery, Run, breakdown, recoveries
from sharded import KINDS

ROUND = 5  # kills of one job


def main() -> None:
    parser = Arguments(__doc__)
    parser.size("--kills", 20, 1, help="for each way of training")
    parser.add_argument("--every", default="1", help="TASKD_SNAPSHOT_STEPS: 1 to 1000, or auto")
    args = parser.parse_args()
    dice = random.Random(1)
    found: dict[str, list[Recovery]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as base:
        for number in range(-(-args.kills // ROUND)):
            for kind in KINDS:
                with Run(
                    Path(base) / f"{kind}-{number}",
                    4,
                    True,
                    "sharded.py",
                    ["--kind", kind],
                    TASKD_SNAPSHOT_STEPS=args.every,
                ) as run:
                    run.wait_for_steps(40)
                    found[kind] += run.kills(min(ROUND, args.kills - number * ROUND), dice)
    publish(args.json, recoveries(found), breakdown(found), kills=found)
    everything = [r for kills in found.values() for r in kills]
    if any((r.lost and args.every == "1") or not r.kept for r in everything):
        sys.exit("a committed step was repeated, or a survivor was replaced")


if __name__ == "__main__":
    main()

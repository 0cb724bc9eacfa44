"""The time from kill -9 of one rank until all ranks train on, for ways of training in parallel
beside DDP, in one run.

    python benchmarks/parallel.py [--kills N] [--every K] [--json FILE]

One job of benchmarks/sharded.py for each way, in rounds, so that a busy moment of the machine
affects all of them. Exit status 1 if a step was lost that was recorded, a survivor was replaced, or
a job failed.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
from pathlib import Path

from figures import Figures
from jobs import Failed, Recovery, Run, at_random, end_cleanly, machine, ms, summary
from rich.console import Console
from sharded import KINDS

ROUND = 5  # kills of one job


def kills(
    directory: Path, kind: str, count: int, dice: random.Random, every: str
) -> list[Recovery]:
    found = []
    arguments = ["--kind", kind]
    with Run(directory, 4, True, "sharded.py", arguments, TASKD_SNAPSHOT_STEPS=every) as run:
        run.wait_for_steps(40)
        for _ in range(count):
            known = len(run.incidents())
            at_random(dice)
            recovery = run.recover(run.kill(dice.randrange(4)))
            recovery.phases.update(run.phases(recovery.kill, known + 1))
            found.append(recovery)
            run.wait_for_steps(10)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20, help="for each way of training")
    parser.add_argument("--every", default="1", help="TASKD_SNAPSHOT_STEPS: 1 to 1000, or auto")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    end_cleanly()
    dice, console = random.Random(1), Console()
    found: dict[str, list[Recovery]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as base:
        try:
            for number in range(-(-args.kills // ROUND)):
                for kind in KINDS:
                    count = min(ROUND, args.kills - number * ROUND)
                    found[kind] += kills(
                        Path(base) / f"{kind}-{number}", kind, count, dice, args.every
                    )
        except Failed as error:
            console.print(str(error), markup=False)
            sys.exit(1)
    usual = statistics.median(r.seconds for r in found["ddp"])
    heads = ("way", "kills", "median ms", "worst", "of DDP's", "step ms", "REPLACE", "RESUME")
    table = Figures("kill to the next step of all ranks", *heads)
    for kind, recoveries in found.items():
        seconds = summary([r.seconds for r in recoveries])
        table.add_row(
            kind,
            str(len(recoveries)),
            ms(seconds["median"]),
            ms(seconds["worst"]),
            f"{seconds['median'] / usual:.2f}",
            ms(statistics.median(r.step for r in recoveries)),
            *(
                ms(statistics.median(r.phases[phase] for r in recoveries))
                for phase in ("REPLACE", "RESUME")
            ),
        )
    console.print(table)
    if args.json:
        report = {
            kind: [{"seconds": r.seconds, "step": r.step, "phases": r.phases} for r in recoveries]
            for kind, recoveries in found.items()
        }
        args.json.write_text(json.dumps({"machine": machine(), "found": report}, indent=1))
    everything = [r for recoveries in found.values() for r in recoveries]
    if any((r.lost and args.every == "1") or not r.kept for r in everything):
        console.print("a committed step was repeated, or a survivor was replaced")
        sys.exit(1)


if __name__ == "__main__":
    main()

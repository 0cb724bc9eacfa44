"""The time from kill -9 of a rank until all ranks train on, without ClusterD and with it in both
roles; the jobs alternate in rounds.

    python benchmarks/clusterd.py [--kills 20]

ClusterD is the tests' stand-in, a gRPC server in this process, whose wait for further faults is
0.2 s instead of 1 s; what a real one needs for its own decisions comes on top, in `follow` alone.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
from pathlib import Path

from jobs import Run, at_random, end_cleanly, machine, ms, wait_for_quiet
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.mindcluster.clusterd_stand_in import StandIn

WORLD, PER_ROUND = 4, 5
STRATEGIES = ("retry", "recover-in-place")


def one_job(directory: Path, role: str, dice: random.Random) -> list[float]:
    cluster = StandIn(STRATEGIES)
    try:
        with Run(
            directory,
            WORLD,
            taskd=True,
            MINDX_SERVER_IP=f"127.0.0.1:{cluster.port}",
            TASKD_CLUSTERD=role,
            TASKD_RECOVER_STRATEGY=",".join(STRATEGIES),
        ) as run:
            if role != "off":
                cluster.wait("Subscribe")
            run.wait_for_steps(60)
            found = []
            for _ in range(PER_ROUND):
                at_random(dice)
                found.append(run.recover(run.kill(dice.randrange(WORLD))).seconds)
                run.wait_for_steps(10)
            return found
    finally:
        cluster.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    args = parser.parse_args()
    end_cleanly()
    console, dice = Console(), random.Random(1)
    found: dict[str, list[float]] = {role: [] for role in ("off", "lead", "follow")}
    wait_for_quiet(10.0)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(-(-args.kills // PER_ROUND)):
            for role, times in found.items():
                times += one_job(Path(folder) / f"{role}-{number}", role, dice)
    about = machine()
    console.print(f"{about['cores']} cores, {about['cpu']}")
    table = Table("TASKD_CLUSTERD", "kills", "median, ms", "least", "most", "to off")
    base = statistics.median(found["off"])
    for role, times in found.items():
        middle = statistics.median(times)
        table.add_row(
            role,
            str(len(times)),
            *(ms(value) for value in (middle, min(times), max(times))),
            f"{middle / base:.2f}",
        )
    console.print(table)


if __name__ == "__main__":
    main()

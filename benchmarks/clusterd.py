"""The time from kill -9 of a rank until all ranks train on, without ClusterD and with it in both
roles; the jobs alternate in rounds.

    python benchmarks/clusterd.py [--kills 20] [--waits 0.2]

ClusterD is the tests' stand-in, a gRPC server in this process, which waits so long each for further
faults and for memory, instead of 1 and 10 s; a real one needs more
for its decisions, in `follow` alone. `--waits 0`: what taskd itself takes.
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path

from arguments import Arguments
from figures import publish
from jobs import Recovery, Run, breakdown, recoveries, wait_for_quiet

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.mindcluster import clusterd_faults
from tests.mindcluster.clusterd_stand_in import StandIn

ROUND = 5  # kills of one job
STRATEGIES = ("retry", "recover-in-place")


def one_job(directory: Path, role: str, kills: int, dice: random.Random) -> list[Recovery]:
    cluster = StandIn(STRATEGIES, per_node=4)
    try:
        with Run(
            directory,
            4,
            taskd=True,
            MINDX_SERVER_IP=f"127.0.0.1:{cluster.port}",
            TASKD_CLUSTERD=role,
            TASKD_RECOVER_STRATEGY=",".join(STRATEGIES),
        ) as run:
            if role != "off":
                cluster.wait("Subscribe")
            run.wait_for_steps(60)
            return run.kills(kills, dice)
    finally:
        cluster.close()


def main() -> None:
    parser = Arguments(__doc__)
    parser.size("--kills", 20, 1)
    parser.add_argument("--waits", type=float, default=0.2, help="seconds")
    args = parser.parse_args()
    clusterd_faults.FLUSH = clusterd_faults.RELEASE = args.waits
    dice = random.Random(1)
    found: dict[str, list[Recovery]] = {role: [] for role in ("off", "lead", "follow")}
    wait_for_quiet(10.0)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(-(-args.kills // ROUND)):
            for role, kills in found.items():
                count = min(ROUND, args.kills - number * ROUND)
                kills += one_job(Path(folder) / f"{role}-{number}", role, count, dice)
    publish(args.json, recoveries(found), breakdown(found), kills=found)


if __name__ == "__main__":
    main()

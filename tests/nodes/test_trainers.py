"""Jobs of trainers over two nodes, which are lost, cut off and moved at points that each trainer
has: every number and file is that of the trainer alone."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
import training
from cluster import Cluster, incidents
from plain_trainers import ACCELERATED, FIT, TRAIN, Compare, name

STRATEGY = "retry,recover-in-place,recover"
LIGHTNING, TRANSFORMERS, ACCELERATE = (FIT, "rich"), (TRAIN, "evaluate"), (ACCELERATED, "calls")
EPOCHS = TRAIN, "epochs"
# where a rank is killed, and where one waits for what is done to its node
POINTS = {
    # in validation; while a checkpoint is made; at the end of an epoch
    LIGHTNING: ("1:1:forward", ("1:12:validation", "0:6:save"), "1:2:epoch-end"),
    # in a prediction; in an accumulation; between two parts of a checkpoint
    TRANSFORMERS: (
        "1:0:step_begin",
        ("1:3:prediction_step", "0:4:substep_end"),
        "1:6:saving",
    ),
    # in an evaluation; in an accumulation; after an update
    ACCELERATE: ("1:1:backward", ("1:2:evaluate", "0:8:backward"), "1:14:tail"),
}
# where ranks wait for the moves of their nodes, and for the loss of one that has moved
MOVES = {
    LIGHTNING: ("1:1:forward", "0:20:end", "1:14:validation"),
    EPOCHS: ("1:1:substep_end", "0:6:substep_end", "1:12:saving"),
    ACCELERATE: ("1:1:backward", "0:8:backward", "1:14:tail"),
}


@pytest.fixture(scope="session")
def compare(tmp_path_factory) -> Compare:
    return Compare(tmp_path_factory.getbasetemp())


class Trains(Cluster):
    """Two nodes of one rank."""

    def __init__(self, machines, directory: Path, script: str, kind: str, faults: str, **env: str):
        super().__init__(
            machines, directory, 2, 1, script, kind, strategy=STRATEGY,
            TEST_FAULTS=faults, **env,
        )  # fmt: skip

    def goes_on(self, point: str) -> None:
        (self.directory / f"enough-{point.split(':')[1]}").touch()

    def naps(self, point: str) -> int:
        """Wait until a rank naps there; its host."""
        rank, step, name = point.split(":")
        self.until(point, (self.directory / f"struck-{rank}-{step}-{name}-0").exists)
        started = rf"rank {rank}: (?:its first process|replacement \d+) is pid (\d+)"
        pids = re.findall(started, self.log("agent*.log"))
        found = [h for h in range(self.hosts.count) if {*map(str, self.hosts.pids(h))} & {*pids}]
        (host,) = found
        return host


@pytest.mark.long
@pytest.mark.parametrize("trainer", [LIGHTNING, TRANSFORMERS, ACCELERATE], ids=name)
def test_nodes_are_lost(hosts, tmp_path, compare, trainer):
    kill, lost, cut = POINTS[trainer]
    faults = ",".join([f"{kill}:kill", *(f"{point}:nap" for point in (*lost, cut))])
    gone = []
    with Trains((machines := hosts(5)), tmp_path / "job", *trainer, faults) as job:
        job.standby(2, 3, 4)
        for point in (*lost, cut):
            gone.append(job.naps(point))
            if point in lost:
                machines.signal(gone[-1], signal.SIGKILL)
            else:
                machines.cut(gone[-1])
            job.until("it was repaired", lambda: len(incidents(job.directory)) > len(gone))
        result = job.end(*gone)
    compare(result, *trainer)
    found = [(closed["strategy"], closed["ranks"]) for closed in incidents(job.directory)]
    ranks = [int(point[0]) for point in (*lost, cut)]
    assert found == [("recover-in-place", [1]), *(("recover", [rank]) for rank in ranks)]


@pytest.mark.parametrize("trainer", [ACCELERATE, *training.long(LIGHTNING, EPOCHS)], ids=name)
def test_nodes_move(hosts, tmp_path, compare, trainer):
    """Both nodes are sub-healthy and move, and one that has moved is lost."""
    *moved, lost = MOVES[trainer]
    faults = ",".join(f"{point}:nap" for point in (*moved, lost))
    moves = {"TASKD_SUBHEALTHY_STRATEGY": "hotSwitch"}
    gone = []
    with Trains((machines := hosts(4)), tmp_path / "job", *trainer, faults, **moves) as job:
        job.standby(2, 3)
        for number, point in enumerate(moved, 1):
            gone.append(job.naps(point))
            asked = job.subhealth(int(point[0]))
            job.until("a standby was prepared", lambda n=number: prepared(job) == n)
            job.goes_on(point)
            job.until("it had moved", lambda n=number: len(incidents(job.directory)) == n)
            asked.kill()  # the manager that it asked has left with node 0
            asked.communicate()
        job.standby(gone[0])
        gone.append(job.naps(lost))
        machines.signal(gone[-1], signal.SIGKILL)
        result = job.end(*gone[1:])
    compare(result, *trainer)
    found = [(closed["strategy"], closed["ranks"]) for closed in incidents(job.directory)]
    # ranks that wait at the end of a pass as the manager leaves with node 0 are interrupted once
    assert found[:3] == [("hot-switch", [1]), ("hot-switch", [0]), ("recover", [1])]
    assert found[3:] in ([], [("retry", [])])


def prepared(job: Trains) -> int:
    return job.log("agent*.log").count("ranks of the node to be taken over are ready")

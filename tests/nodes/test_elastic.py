"""Nodes are lost and nobody comes: the job goes on with fewer replicas, and grows again.

Losses, and the samples that each was computed from, are those of a run in which the same shares
were computed by hand in the same order; the samples are those of the full job."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cluster import Cluster
from training import SCRIPTS, Result, environment

STEPS = "144"
ALONE = "retry,recover-in-place,elastic-training"


class Elastic(Cluster):
    def __init__(self, machines, directory, kind, nodes=4, ranks=1, strategy=ALONE, **env):
        self.kind = kind
        super().__init__(
            machines, directory, nodes, ranks, "elastic.py", kind, STEPS, strategy=strategy, **env
        )

    def plan(self) -> str:
        """Who stood in for whom from which step on, by the managers' orders."""
        found: dict[int, str] = {}
        stand_ins = ""
        orders = re.compile(r"to all: (Rebuild|Resume)\((.*)\)$")
        lines = [line for path in self.logs("manager*.log") for line in path.splitlines()]
        for line in sorted(lines, key=lambda line: line[:23]):
            if not (order := orders.search(line)):
                continue
            if order[1] == "Rebuild":
                pairs = re.findall(r"\((\d+), (\d+)\)", order[2].rpartition("stand_ins=")[2])
                stand_ins = ",".join(f"{away}={stand_in}" for away, stand_in in pairs)
            else:
                step = int(re.search(r"step=(\d+)", order[2])[1])
                found = {s: p for s, p in found.items() if s < step} | {step: stand_ins}
        return ";".join(f"{step}:{pairs}" for step, pairs in sorted(found.items()))

    def logs(self, name: str) -> list[str]:
        return [p.read_text(errors="replace") for p in (self.directory / "log").glob(name)]

    def shares(self, step: int) -> int:
        """How many shares of a step have been written down."""
        return sum(line.split()[0] == str(step) for line in lines_of(self.directory))

    def shrunk(self, ranks: int) -> None:
        self.until(
            f"{ranks} ranks trained",
            lambda: f"{ranks} of {self.world} ranks train" in self.log("manager*.log"),
        )


def lines_of(directory: Path) -> set[str]:
    """What was computed in all steps: step, loss, samples."""
    found = set()
    for path in directory.glob("shares-*"):
        for line in path.read_text().splitlines():
            step, _, loss, samples = line.split()
            found.add(f"{step} {loss} {samples}")
    return found


def by_hand(job: Elastic, plan: str) -> Result:
    out = job.directory / "by-hand"
    out.mkdir()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    script = [str(SCRIPTS / "elastic.py"), str(out), job.kind, STEPS, plan]
    done = subprocess.run(
        [*command, "--nproc-per-node", str(job.world), *script],
        env=environment(out),
        capture_output=True,
        text=True,
        timeout=120,
        cwd=out,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return Result(0, "", out)


def assert_as_by_hand(job: Elastic, result: Result, present: list[int]) -> None:
    assert result.status == 0, result.output[-6000:]
    plan = job.plan()
    reference = by_hand(job, plan)
    assert lines_of(job.directory) == lines_of(reference.directory), plan
    for rank in present:
        assert set(result.final(rank)) == set(reference.final(rank)), (rank, plan)
    samples = sorted(line.split()[2] for line in lines_of(job.directory))
    assert len(samples) == int(STEPS) * job.world, "a share is missing, or was computed twice"


@pytest.mark.parametrize("kind", ["shares", "batches", "accumulate"])
def test_a_node_is_lost_and_comes_back(hosts, tmp_path, kind):
    with Elastic((machines := hosts(5)), tmp_path / "job", kind) as job:
        job.trains()
        machines.signal(3, signal.SIGKILL)
        closed = job.repaired()
        assert closed["strategy"] == "elastic-training" and closed["ranks"] == [], closed
        job.shrunk(3)
        job.trains_on(0, 1, 2)
        job.standby(4)
        grown = job.repaired()
        assert grown["strategy"] == "grow" and grown["ranks"] == [3], grown
        job.trains()
        result = job.end(3)
    assert_as_by_hand(job, result, [0, 1, 2, 3])


def test_down_to_one_replica_and_ranks_die_meanwhile(hosts, tmp_path):
    with Elastic((machines := hosts(4)), tmp_path / "job", "shares") as job:
        job.trains()
        machines.signal(1, signal.SIGKILL)
        assert job.repaired()["strategy"] == "elastic-training"
        job.trains_on(0, 2, 3)
        # one that stands in for another
        os.kill(job.result().pids(0)[-1], signal.SIGKILL)
        assert job.repaired()["strategy"] == "recover-in-place"
        job.trains_on(0, 2, 3)
        # node 0, with the manager, and the rank that stands in
        machines.signal(0, signal.SIGKILL)
        assert job.repaired()["strategy"] == "elastic-training"
        job.trains_on(2, 3)
        result = job.end(0, 1)
    assert_as_by_hand(job, result, [2, 3])


def test_a_rank_leaves_and_its_node_stays(hosts, tmp_path):
    only = "elastic-training"
    with Elastic(hosts(2), tmp_path / "job", "batches", 2, 2, strategy=only) as job:
        job.trains()
        os.kill(job.result().pids(3)[-1], signal.SIGKILL)
        closed = job.repaired()
        assert closed["strategy"] == "elastic-training", closed
        job.trains_on(0, 1, 2)
        os.kill(job.result().pids(0)[-1], signal.SIGKILL)
        assert job.repaired()["strategy"] == "elastic-training"
        job.trains_on(1, 2)
        result = job.end()
    assert_as_by_hand(job, result, [1, 2])

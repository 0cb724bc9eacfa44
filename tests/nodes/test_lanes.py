"""A replica over two nodes loses one of them. The other one's launcher, which then has no ranks,
becomes a standby: it takes the place of the next node that is lost, or comes back with its replica.

The script's numbers are exact in any order, so all is equal to an undisturbed run."""

from __future__ import annotations

import signal

import pytest
from by_hand import alone
from cluster import Cluster
from training import Result

STEPS = "120"


class Lanes(Cluster):
    def __init__(self, machines, directory, kind, strategy, nodes=4):
        self.kind = kind
        wait = {"TASKD_WAIT_RESCHEDULE_TIMEOUT": "30"}
        super().__init__(
            machines, directory, nodes, 1, "lanes.py", kind, STEPS, strategy=strategy, **wait
        )

    def shrunk(self) -> None:
        assert self.repaired()["strategy"] == "elastic-training"
        self.until(
            "the other launcher of the replica waited",
            lambda: "its launcher becomes a standby" in self.log("manager*.log"),
        )

    def check(self, result: Result, *away: int) -> None:
        assert result.status == 0, result.output[-6000:]
        out = self.directory / "alone"
        plain = alone(out, self.world, "lanes.py", self.kind, STEPS, "alone")
        for rank in range(self.world):
            ours, theirs = result.steps(rank), plain.steps(rank)
            different = {s for s in ours if ours[s] != theirs[s]}
            assert not different, (rank, min(different))
        for rank in set(range(self.world)) - set(away):
            assert set(result.final(rank)) == set(plain.final(rank)), rank


# with node 1, node 0 leaves, which has the manager
@pytest.mark.parametrize(
    ("kind", "lost", "other"), [("tp", 1, 0), pytest.param("hsdp", 3, 2, marks=pytest.mark.long)]
)
def test_a_replica_over_two_nodes_leaves_and_comes_back(hosts, tmp_path, kind, lost, other):
    with Lanes((machines := hosts(5)), tmp_path / "job", kind, "elastic-training") as job:
        job.trains()
        machines.signal(lost, signal.SIGKILL)
        job.shrunk()
        job.trains_on(*{0, 1, 2, 3} - {lost, other})
        job.standby(4)
        grown = job.repaired()
        assert (grown["strategy"], set(grown["ranks"])) == ("grow", {lost, other}), grown
        job.trains()
        result = job.end(lost)
    job.check(result)


@pytest.mark.long
def test_a_launcher_without_ranks_takes_the_place_of_another_node(hosts, tmp_path):
    both = "recover,elastic-training"
    with Lanes((machines := hosts(6)), tmp_path / "job", "hsdp", both, 6) as job:
        job.trains()
        machines.signal(2, signal.SIGKILL)
        job.shrunk()
        job.trains_on(0, 1, 4, 5)
        # node 0, with the manager
        machines.signal(0, signal.SIGKILL)
        closed = job.repaired()
        assert (closed["strategy"], closed["ranks"]) == ("recover", [0]), closed
        job.trains_on(0, 1, 4, 5)
        result = job.end(0, 2)
    job.check(result, 2, 3)

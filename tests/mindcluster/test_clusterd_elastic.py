"""The stand-in for ClusterD has a job shrink and grow."""

from __future__ import annotations

import pytest

from tests.mindcluster.clusterd_job import NAMED, Job, hurry

SHRUNK = "WaitReportScaleInIsolateRanks CheckReportScaleInIsolateRanks"
RUNS = f"{SHRUNK} WaitReportScaleInStatus CheckRecoverResult ScaleInRunning"


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    hurry(monkeypatch)


def shrunk(*strategies, isolated=(2, 3)):
    """A job that ClusterD has had shrink for a fault of rank 3; which nodes it ended for that."""
    job = Job("elastic-training", *strategies)
    job.tell("ReportProcessFault", ranks=((3, 1),))
    signal = job.named("downgrade", "dump", "exit")
    assert (signal.strategy, signal.extra) == ("downgrade", '{"scale-in-strategy": "DP"}')
    assert (dict(signal.ranks), signal.nodes) == ({2: 1, 3: 1}, (1,))
    job.tell("ReportRecoverStatus", 201, [(rank, 1) for rank in isolated], strategy="downgrade")
    nodes = job.hears("faultNodesExit").nodes
    job.result("downgrade")
    job.until("ScaleInRunning")
    return job, nodes


def test_a_job_shrinks_and_grows():
    job, nodes = shrunk()
    assert nodes == ()  # that of the fault is known
    job.machine.run_again = True
    signal = job.hears("changeStrategy")
    assert (signal.strategy, signal.extra) == ("upgrade", '{"scale-out-strategy": "DP"}')
    job.result("upgrade")
    assert job.path() == f"{NAMED} {RUNS} WaitReportScaleOutStatus CheckRecoverResult Init"


def test_the_pods_of_ranks_that_leave_end():
    _, nodes = shrunk(isolated=(0, 1, 2, 3))
    assert nodes == (0,)


def test_a_shrunk_job_has_no_repair():
    job, _ = shrunk("dump")
    job.tell("ReportProcessFault", ranks=((0, 1),))
    signal = job.stopped()
    assert set(dict(signal.ranks)) == {0, 1, 2, 3}  # the earlier ones are not forgotten
    job.tell("ReportRecoverStrategy", strategies=("downgrade", "dump", "exit"))
    assert job.hears("changeStrategy").strategy == "dump"


@pytest.mark.parametrize("after", [0, 1, 2])
def test_what_fails_ends_in_a_dump(after):
    job = Job("elastic-training", "dump")
    job.tell("ReportProcessFault", ranks=((3, 1),))
    job.named("downgrade", "dump", "exit")
    if after:
        job.tell("ReportRecoverStatus", 201, [(3, 1)], strategy="downgrade")
        job.hears("faultNodesExit")
    if after == 2:
        job.result("downgrade")
        job.machine.run_again = True
        job.hears("changeStrategy")
    job.result("upgrade" if after == 2 else "downgrade", 406)
    assert job.hears("changeStrategy").strategy == "dump"


def test_a_job_shrinks_if_no_pod_comes():
    job = Job("recover", "elastic-training")
    job.machine.schedules = False
    job.tell("ReportProcessFault", ranks=((3, 1),))
    assert job.named("recover", "downgrade", "exit").strategy == "recover"
    assert job.hears("changeStrategy").strategy == "downgrade"
    job.tell("ReportRecoverStatus", 201, strategy="downgrade")
    job.hears("faultNodesExit")


def test_a_job_does_not_shrink_by_its_first_pod_or_without_offering_it():
    job = Job("elastic-training")
    job.tell("ReportProcessFault", ranks=((0, 1),))
    assert job.named("downgrade", "exit").strategy == "exit"
    job = Job("elastic-training")
    job.tell("ReportProcessFault", ranks=((3, 1),))
    assert job.named("exit").strategy == "exit"

"""Jobs under ClusterD, which is played by a real gRPC server with a state machine of its own
(tests/mindcluster/clusterd_stand_in.py)."""

from __future__ import annotations

import os
import signal
import time
import uuid
from contextlib import contextmanager

import pytest
import training

from tests.mindcluster import clusterd_faults
from tests.mindcluster.clusterd_stand_in import StandIn
from tests.mindcluster.clusterd_states import INIT

STEPS = "100"
WORLD = 3
ALL = ("retry", "recover-in-place", "dump")


@contextmanager
def job(tmp_path, strategies=ALL, role="follow", answers=True, **more):
    """A job that trains, and the ClusterD that has registered it, if it answers."""
    directory = tmp_path / "job"
    cluster = StandIn(strategies, per_node=WORLD)
    env = {
        "MINDX_SERVER_IP": f"127.0.0.1:{cluster.port if answers else training.free_port()}",
        "TASKD_CLUSTERD": role,
        "TASKD_RECOVER_STRATEGY": ",".join(strategies),
        **more,
    }
    try:
        with training.start(directory, WORLD, "steered.py", STEPS, **env) as running:
            if answers:
                registered(running, cluster)
            running.trains()
            yield running, cluster
    finally:
        cluster.close()


def registered(running, cluster):
    """Wait until the manager knows of the present stream of signals: ClusterD knows earlier."""
    mark = f"unknown-{uuid.uuid4().hex}"

    def known():
        cluster.send(mark, uuid=uuid.uuid4().hex)
        return f"signal '{mark}'" in running.result().log("manager.log")

    running.until("the manager reads signals", known)


def settled(running, cluster):
    """Wait until ClusterD has begun anew, the manager knows, and all train."""
    with cluster.changed:
        assert cluster.changed.wait_for(lambda: cluster.state == INIT, training.LIMIT)
    registered(running, cluster)
    running.trains()


def kinds(cluster):
    return [signal.signalType for signal in cluster.sent]


def equal(running, reference):
    training.assert_equal(running.end(), reference(WORLD, "steered.py", STEPS), WORLD)


def test_clusterd_decides_about_each_fault(tmp_path, reference):
    with job(tmp_path) as (running, cluster):
        running.kill(1)
        (incident,) = running.repaired()
        assert (incident["strategy"], incident["ranks"]) == ("recover-in-place", [1])
        assert "CONSULT" in incident["phases"], incident
        told = cluster.wait("ReportRecoverStatus")
        assert (told.status.code, told.strategy) == (0, "recover")
        assert [f.rankId for f in cluster.wait("ReportProcessFault").faultRanks] == ["1"]
        assert list(cluster.wait("ReportRecoverStrategy").strategies) == ["recover", "dump", "exit"]

        running.trains()
        # no process is gone: it is told, and nothing waits for it
        running.poison(2, "parameter")
        (incident,) = running.repaired()
        assert (incident["strategy"], incident["ranks"]) == ("retry", [])
        assert "CONSULT" not in incident["phases"], incident
        told = cluster.wait("ReportProcessFault", 2).faultRanks
        assert [(f.rankId, f.faultType) for f in told] == [("2", "0")]

        # the manager is killed meanwhile
        running.trains()
        cluster.silent = True
        running.kill(1)
        cluster.wait("ReportProcessFault", 3)
        os.kill(running.manager(), signal.SIGKILL)
        cluster.silent = False
        running.repaired()
        registered(running, cluster)
        running.trains()
        running.kill(2)
        running.repaired()
        assert cluster.wait("ReportRecoverStatus", 2).status.code == 0
        equal(running, reference)
        assert "killMaster" not in [s.signalType for s in cluster.sent]


@pytest.mark.parametrize("role", ["lead", "follow"])
def test_a_repaired_page_is_told_and_costs_nothing_later(tmp_path, reference, role):
    """Untold, ClusterD's own filter would find it in the device seconds later, and end the pod."""
    with job(tmp_path, role=role) as (running, cluster):
        running.poison(2, "parameter")
        (incident,) = running.repaired()
        assert (incident["strategy"], incident["ranks"]) == ("retry", [])
        assert "CONSULT" not in incident["phases"], incident
        told = cluster.wait("ReportRecoverStatus")
        assert (told.status.code, told.strategy) == (0, "retry")
        equal(running, reference)
        assert [len(running.result().pids(rank)) for rank in range(WORLD)] == [1] * WORLD


def test_clusterd_loses_ranks_names_them_again_and_gives_the_job_up(
    tmp_path, reference, monkeypatch
):
    """What is known here decides; the next fault is ClusterD's again."""
    monkeypatch.setattr(clusterd_faults, "KEPT", 60.0)
    with job(tmp_path) as (running, cluster):
        cluster.loses = 2  # the first report, and the one that says it again
        running.kill(1)
        running.repaired()
        told = cluster.wait("ReportRecoverStatus")
        assert (told.status.code, told.strategy) == (406, "dump")
        assert cluster.count("ReportProcessFault") == 2
        cluster.loses = 1
        for rank in (2, 0):  # with the second it names rank 2 again
            settled(running, cluster)
            running.kill(rank)
            (incident,) = running.repaired()
            assert (incident["strategy"], incident["ranks"]) == ("recover-in-place", [rank])
        named = [s.faultRanks for s in cluster.sent if s.signalType == "globalFault"]
        assert {"0", "2"} <= {fault.rankId for fault in named[-1]}, named
        settled(running, cluster)
        cluster.configured = False
        running.kill(1)
        running.repaired()
        running.until("it gave the job up", lambda: "killMaster" in kinds(cluster))
        result = running.end()
    training.assert_equal(result, reference(WORLD, "steered.py", STEPS), WORLD)
    assert [len(result.pids(rank)) for rank in range(WORLD)] == [2, 3, 2]
    assert "order killMaster is not carried out" in result.log("manager.log")


@pytest.mark.long
def test_a_fault_of_a_process_does_not_wait_for_a_clusterd_that_says_nothing(tmp_path, reference):
    with job(tmp_path, role="lead") as (running, cluster):
        cluster.silent = True
        running.kill(1)
        (incident,) = running.repaired()
        assert "CONSULT" not in incident["phases"], incident
        equal(running, reference)
        assert [call for call, _ in cluster.heard if call.startswith("Report")] == []


@pytest.mark.long
def test_faults_that_only_clusterd_sees(tmp_path, reference):
    with job(tmp_path, role="lead") as (running, cluster):
        cluster.hardware({2: 0})  # on-chip memory, which its process has not noticed
        (incident,) = running.repaired()
        assert (incident["strategy"], incident["ranks"]) == ("recover-in-place", [2])
        running.trains()
        cluster.wait("ReportRecoverStatus")
        cluster.repaired()
        cluster.hardware({0: 1})  # its process must go
        (incident,) = running.repaired()
        assert (incident["strategy"], incident["ranks"]) == ("recover-in-place", [0])
        told = cluster.wait("ReportRecoverStatus", 2)
        assert (told.status.code, told.strategy) == (0, "recover")
        equal(running, reference)


@pytest.mark.long
def test_clusterd_breaks_off_restarts_and_is_late(tmp_path, reference):
    """In the middle of its handling of a fault. What it sends twice counts once; what it sends for
    another job, or does not make sense, not at all."""
    with job(tmp_path, TASKD_CLUSTERD_TIMEOUT="2") as (running, cluster):
        cluster.silent = True
        running.kill(0)
        cluster.wait("ReportProcessFault")
        cluster.cut()
        (incident,) = running.repaired()
        assert incident["strategy"] == "recover-in-place"
        registered(running, cluster)
        running.kill(1)  # silent still: its time limit passes
        (incident,) = running.repaired()
        assert incident["phases"]["CONSULT"] >= 1.0, incident
        cluster.send("killMaster", job="another")
        cluster.send("globalFault", ranks=[("x", "1")], actions=["on_global_rank"])
        cluster.send("x" * 2000)
        running.trains()
        cluster.silent = False
        running.kill(2)
        running.repaired()
        assert cluster.wait("ReportRecoverStatus").status.code == 0
        equal(running, reference)


STATES = (
    "NotifyWaitFaultFlushing",
    "NotifyStopTrain",
    "WaitReportStopComplete",
    "WaitFaultFlushFinished",
    "NotifyGlobalFault",
    "WaitReportRecoverStrategy",
    "NotifyDecidedStrategy",
    "WaitReportProcessRecoverStatus",
    "CheckRecoverResult",
)


@pytest.mark.long
@pytest.mark.parametrize("role", ["lead", "follow"])
def test_clusterd_begins_anew_in_each_state(tmp_path, reference, role):
    """Its limit of requests refuses some of the reports meanwhile."""
    # nothing may wait for it in vain
    with job(tmp_path, role=role, TASKD_CLUSTERD_TIMEOUT="600") as (running, cluster):
        for number, state in enumerate(STATES):
            registered(running, cluster)
            cluster.cut_in, cluster.refused = state, number % 3
            results = cluster.count("ReportRecoverStatus")
            if role == "follow":
                running.kill(number % WORLD)
            else:
                cluster.repaired()
                cluster.hardware({number % WORLD: 1})
            (incident,) = running.repaired()
            assert incident["ranks"] == [number % WORLD], (state, incident)
            running.until("it had begun anew", lambda: not cluster.cut_in)
            if number <= STATES.index("NotifyDecidedStrategy"):  # it had not decided, and does now
                cluster.wait("ReportRecoverStatus", results + 1)
            running.trains()
        equal(running, reference)
        assert "killMaster" not in [s.signalType for s in cluster.sent]


def test_clusterd_pauses_and_goes_on(tmp_path, reference):
    with job(tmp_path, role="lead") as (running, cluster):
        cluster.send("stopTrain", uuid="u", again=2, actions=["pause_train"])
        assert cluster.wait("ReportStopComplete").status.code == 0
        running.until("all ranks were paused", lambda: running.phases() == ["paused"] * WORLD)
        before = running.committed()
        time.sleep(0.5)  # of standing still
        assert running.committed() == before
        cluster.send("changeStrategy", uuid="u", changeStrategy="continue")
        running.trains()
        assert cluster.wait("ReportRecoverStatus").strategy == "continue"
        equal(running, reference)


def test_clusterd_ends_the_job(tmp_path):
    dump = tmp_path / "dump"
    with job(tmp_path, role="lead", TASKD_DUMP_PATH=str(dump)) as (running, cluster):
        cluster.send("killMaster", uuid="k")  # nothing is at fault: it is not carried out
        running.trains()
        cluster.send("saveAndExit", uuid="u", actions=["save_and_exit"])
        result = running.end()
        assert result.status not in (0, -1), result.output
        assert "ClusterD" in training.paragraph(result)
        assert list(dump.glob("step-*"))
        told = cluster.wait("ReportRecoverStatus")
        assert (told.status.code, told.strategy) == (0, "dump")


@pytest.mark.parametrize("answers", [True, *training.long(False)])
def test_the_last_pod_saves_the_state_when_it_is_deleted(tmp_path, answers):
    """Whether the ClusterD answers whose address the operator always sets, or not."""
    dump = str(tmp_path / "dump")
    with job(tmp_path, role="lead", answers=answers, TASKD_DUMP_PATH=dump) as (running, _):
        os.kill(running._process.pid, signal.SIGTERM)
        result = running.end()
    assert result.status == 75 and "SIGTERM to its launcher" in training.paragraph(result)
    assert list((tmp_path / "dump").glob("step-*"))


@pytest.mark.long
def test_the_manager_is_killed_while_clusterd_pauses(tmp_path, reference):
    """The pause was its order, and ClusterD does not know the next one's."""
    with job(tmp_path, role="lead") as (running, cluster):
        cluster.send("stopTrain", uuid="u", actions=["pause_train"])
        running.until("all ranks were paused", lambda: running.phases() == ["paused"] * WORLD)
        os.kill(running.manager(), signal.SIGKILL)
        running.trains()
        registered(running, cluster)
        equal(running, reference)


@pytest.mark.long
def test_all_ranks_are_restarted_before_clusterd_handles_the_fault(tmp_path, reference):
    """What it orders then is answered, and ends nothing."""
    with job(tmp_path, strategies=("retry",), TASKD_FAULT_RETRY_TIMES="1") as (running, cluster):
        cluster.silent = True
        running.poison(2, "parameter")
        cluster.wait("ReportProcessFault")
        pid = running.pid(0)
        running.kill(1)  # `retry` cannot help
        running.until("all ranks were restarted", lambda: running.pid(0) not in (0, pid))
        cluster.silent = False
        cluster.reported({2: 0})
        told = cluster.wait("ReportRecoverStatus")
        assert (told.status.code, told.strategy) == (0, "exit")
        equal(running, reference)
        assert "killMaster" not in [s.signalType for s in cluster.sent]

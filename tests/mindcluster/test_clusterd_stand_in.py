"""The stand-in for ClusterD: its table, and what it does along each of its paths. Without a server:
reports and signals are handed over directly."""

from __future__ import annotations

import threading

import pytest

from tests.mindcluster import clusterd_faults, clusterd_machine
from tests.mindcluster.clusterd_job import (
    NAMED,
    PATIENCE,
    PREFIX,
    RESTART,
    RETRIED,
    Job,
    hurry,
)
from tests.mindcluster.clusterd_operations import Operations
from tests.mindcluster.clusterd_states import INIT, TABLE


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    hurry(monkeypatch)


def test_each_state_is_reached_and_does_something():
    reached, left = {INIT}, [INIT]
    while left:
        for state in set(TABLE[left.pop()].values()) - reached:
            reached.add(state)
            left.append(state)
    assert reached == set(TABLE)
    assert [s for s in TABLE if not hasattr(Operations, f"_{s}")] == []
    waits = [s for s in TABLE if s.startswith("WaitReport")]
    assert [s for s in waits if "ReportTimeout" not in TABLE[s]] == []


def test_a_process_is_restarted_in_its_pod():
    job = Job()
    job.tell("ReportProcessFault", ranks=((1, 1),))
    signal = job.named()
    assert (signal.strategy, signal.extra, signal.nodes) == ("recover", "recover-in-place", (0,))
    assert dict(signal.ranks) == {1: 1}
    job.result("recover")
    assert job.path() == f"{NAMED} WaitReportProcessRecoverStatus CheckRecoverResult Init"


def test_the_pod_of_a_fault_exits_with_all_of_its_ranks():
    job = Job("recover")
    job.tell("ReportProcessFault", ranks=((1, 1),))
    signal = job.stopped()
    assert signal.actions == ("on_global_rank", "fault_nodes_exit") and signal.nodes == (0,)
    assert dict(signal.ranks) == {0: 1, 1: 1}
    job.tell("ReportRecoverStrategy", strategies=("recover", "exit"))
    signal = job.hears("changeStrategy")
    assert (signal.strategy, signal.extra, signal.nodes) == ("recover", "", (0,))
    # what it is told now it drops: it is not in its first state, and asks no more
    job.tell("ReportProcessFault", ranks=((2, 1),))
    assert ("WaitReportProcessRecoverStatus", "FaultOccur") in job.machine.dropped
    job.result("recover")
    assert job.path() == f"{NAMED} WaitReportProcessRecoverStatus CheckRecoverResult Init"
    assert job.machine.normal == {}


def test_hardware_begins_with_an_id_of_its_own_in_any_state():
    job = Job("recover")
    job.machine.hardware({1: 1}, (0,))
    first = job.hears("preExitProcess")
    assert (first.nodes, dict(first.ranks)) == ((0,), {1: 1}) and job.machine.state == INIT
    job.machine.hardware({1: 1}, (0,))  # the same again is no news
    job.tell("ReportProcessFault", ranks=((1, 1),))
    stop = job.hears("stopTrain")
    job.machine.hardware({1: 1, 2: 1}, (0, 1))
    second = job.hears("preExitProcess")
    assert (second.nodes, dict(second.ranks)) == ((1,), {2: 1})
    assert len({first.uuid, second.uuid, stop.uuid}) == 3
    job.tell("ReportStopComplete", ranks=((3, 1),))  # ranks that it does not read
    assert job.hears("globalFault").nodes == (0, 1)
    assert set(job.machine.normal) == {0, 1, 2, 3}


def test_what_it_reads_of_faulty_ranks():
    job = Job("recover-in-place")
    job.tell("ReportProcessFault", ranks=((1, 1),))
    job.hears("stopTrain")
    job.tell("ReportStopComplete", ranks=((2, 1),))
    assert dict(job.hears("globalFault").ranks) == {1: 1}


def test_a_fault_for_a_repetition_begins_without_its_device():
    job = Job()
    job.tell("ReportProcessFault", ranks=((1, 0),))
    assert dict(job.hears("stopTrain").ranks) == {1: 0}


@pytest.mark.parametrize(
    ("strategies", "limit"), [(("retry",), "FILTER"), (("recover-in-place",), "FILTER_IN_PLACE")]
)
def test_a_device_whose_process_does_not_report_it_costs_the_process(
    monkeypatch, strategies, limit
):
    job = Job("retry", *strategies)
    monkeypatch.setattr(clusterd_faults, limit, 0.01)
    job.machine.hardware({1: 0})
    assert dict(job.hears("preExitProcess").ranks) == {1: 1}


def test_a_device_that_recovers_in_time_costs_nothing(monkeypatch):
    monkeypatch.setattr(clusterd_faults, "FILTER_IN_PLACE", 60.0)
    job = Job()
    job.machine.hardware({1: 0})
    job.machine.repaired()
    job.tell("ReportProcessFault", ranks=((2, 1),))
    assert dict(job.hears("stopTrain").ranks) == {2: 1}


def test_a_device_that_has_failed_is_found_again_after_a_handling():
    job = Job("recover")
    job.machine.hardware({1: 1}, (0,))
    job.hears("preExitProcess")
    job.tell("ReportProcessFault", ranks=((1, 1),))
    job.handled("recover")
    job.tell("ReportProcessFault", ranks=((2, 1),))
    assert dict(job.hears("stopTrain").ranks) == {1: 1, 2: 1}
    job.machine.repaired()


def test_it_takes_its_time_to_begin(monkeypatch):
    monkeypatch.setattr(clusterd_faults, "BEGIN", 60.0)
    job = Job()
    job.tell("ReportProcessFault", ranks=((1, 1),))
    assert job.hears("stopTrain").ranks == ()


def test_a_report_that_comes_while_it_begins_has_no_ranks():
    """With `retry` configured it orders to save then."""
    job = Job()
    job.machine.loses = 1
    job.tell("ReportProcessFault", ranks=((1, 1),))
    assert job.hears("stopTrain").ranks == ()
    job.tell("ReportStopComplete")
    signal = job.hears("globalFault")
    assert (signal.ranks, signal.nodes) == ((), ())
    job.tell("ReportRecoverStrategy", strategies=("recover", "dump", "exit"))
    assert job.hears("changeStrategy").strategy == "dump"


def test_what_it_was_told_is_named_in_the_next_handling_too(monkeypatch):
    monkeypatch.setattr(clusterd_faults, "KEPT", 60.0)
    job = Job()
    job.tell("ReportProcessFault", ranks=((1, 1),))
    job.handled("recover")
    job.tell("ReportProcessFault", ranks=((2, 1),))
    assert dict(job.hears("stopTrain").ranks) == {1: 1, 2: 1}


def test_without_its_configuration_it_gives_the_job_up():
    job = Job()
    job.machine.configured = False
    job.tell("ReportProcessFault", ranks=((1, 1),))
    job.hears("stopTrain")
    job.tell("ReportStopComplete")
    job.hears("killMaster")


@pytest.mark.parametrize(
    ("kind", "code", "following"),
    [
        (0, 0, "Init"),
        (2, 0, "Init"),
        (0, 405, "WaitFaultFlushFinished"),
        (0, 406, "KillPodForUnrecoverableRetry"),
        (0, 499, "KillPodForUnrecoverableRetry"),
    ],
)
def test_a_repetition(kind, code, following):
    job = Job()
    job.tell("ReportProcessFault", ranks=((1, kind),))
    signal = job.named("retry", "recover", "dump", "exit")
    assert (signal.strategy, dict(signal.ranks)) == ("retry", {1: kind})
    job.result("retry", code)
    if code == 405:
        assert dict(job.hears("globalFault").ranks) == {1: 1}
    if code in (406, 499):
        word = "dump" if code == 406 else "exit"
        assert job.hears("changeStrategy").strategy == word
    if code == 0:
        job.ends()
    life = job.machine.paths[-2 if code == 0 else -1]
    at = len(f"{NAMED} WaitReportStepRetryStatus CheckRecoverResult".split())
    assert " ".join(life[:at]) == f"{NAMED} WaitReportStepRetryStatus CheckRecoverResult"
    assert life[at] == following


def test_a_dump_and_what_follows():
    job = Job("recover", "dump")
    job.tell("ReportProcessFault", ranks=((3, 1),))
    assert job.named("dump", "exit").strategy == "dump"
    job.result("dump")
    signal = job.hears("changeStrategy")
    assert (signal.strategy, signal.extra, signal.nodes) == ("exit", "dump_exit", (1,))
    again = job.hears("changeStrategy")
    assert (again.strategy, again.extra) == ("exit", "dump_exit")
    assert job.path() == f"{NAMED} WaitReportDumpStatus {RESTART} {RETRIED} Init"


def test_a_recovery_that_fails_and_an_exit():
    job = Job("recover")
    job.tell("ReportProcessFault", ranks=((3, 1),))
    job.named("recover", "exit")
    job.result("recover", 406)
    signal = job.hears("changeStrategy")
    assert (signal.strategy, signal.extra, signal.nodes) == ("exit", "", (1,))
    assert job.hears("changeStrategy").extra == "dump_exit"
    wait = "WaitReportProcessRecoverStatus CheckRecoverResult NotifyDecidedStrategy"
    assert job.path() == f"{NAMED} {wait} {RESTART} {RETRIED} Init"


def test_dump_alone_is_ordered_at_once():
    job = Job("dump")
    job.tell("ReportProcessFault", ranks=((3, 1),))
    assert job.hears("saveAndExit").nodes == (1,)


def test_pods_that_do_not_come_end_the_job():
    job = Job("recover")
    job.machine.schedules = False
    job.tell("ReportProcessFault", ranks=((3, 1),))
    job.named("recover", "exit")
    assert job.hears("changeStrategy").extra == "dump_exit"
    job.hears("killMaster")
    assert job.path().endswith(f"WaitReportProcessRecoverStatus {RETRIED} NotifyKillJob Init")


def test_ranks_that_are_not_ready_end_the_job():
    job = Job()
    job.tell("ReportProcessFault", ranks=((3, 1),))
    job.hears("stopTrain")
    job.tell("ReportStopComplete", 404)
    job.hears("killMaster")
    assert job.path() == f"{PREFIX} NotifyKillJob Init"


@pytest.mark.parametrize("answers", range(4))
def test_a_platform_that_does_not_answer(answers):
    """Before the ranks stop, before they are named, before their pods are replaced."""
    job, left = Job("recover"), [True] * answers + [False] * 4
    job.machine.platform = lambda: left.pop(0)
    job.tell("ReportProcessFault", ranks=((3, 1),))
    kinds = ["stopTrain", "globalFault", "changeStrategy"][:answers]
    for kind, call in zip(kinds, ("ReportStopComplete", "ReportRecoverStrategy", ""), strict=False):
        job.hears(kind)
        if call:
            job.tell(call, strategies=("recover", "exit"))
    if answers == 3:
        job.result("recover")
    else:
        assert job.hears("changeStrategy").extra == "dump_exit"
    job.ends()


@pytest.mark.long
def test_reports_are_awaited_for_some_time(monkeypatch):
    monkeypatch.setattr(clusterd_machine.Machine._wait, "__kwdefaults__", {"seconds": 0.05})
    job = Job("recover")
    job.tell("ReportProcessFault", ranks=((3, 1),))
    job.hears("stopTrain")
    assert job.hears("changeStrategy").extra == "dump_exit"
    assert job.path() == f"{PREFIX} {RETRIED} Init"


def test_a_report_waits_in_its_box():
    """Also one that nobody has asked for, which is an answer then."""
    job = Job("recover")
    assert job.tell("ReportStopComplete") == 0
    taken = threading.Thread(target=job.tell, args=("ReportStopComplete",))
    taken.start()
    job.tell("ReportProcessFault", ranks=((3, 1),))
    job.hears("stopTrain")
    job.hears("globalFault")
    taken.join(PATIENCE)
    assert not taken.is_alive()
    # a new stream forgets both
    job.subscribe()
    job.tell("ReportProcessFault", ranks=((3, 1),))
    job.hears("stopTrain")
    job.until("WaitReportStopComplete")


def test_a_stream_ends_with_the_next_and_with_a_late_end_of_an_earlier_one():
    job = Job()
    first = job.stream
    job.subscribe()
    second = job.stream
    job.machine.ended(first)  # it knows that this one is over
    assert first.get(timeout=PATIENCE) is None and second.empty()
    job.machine.ended(second)
    job.ends()
    job.tell("ReportProcessFault", ranks=((3, 1),))  # nobody hears the signal
    job.until("NotifyStopTrain")
    job.subscribe()
    assert job.machine.state == INIT and job.stream.empty()


def test_a_switch_of_network_cards():
    job, tasks = Job(), []
    job.machine.operate("SwitchNic", lambda: tasks.append(1))
    signal = job.hears("stopTrain")
    assert (signal.actions, signal.timeout) == (("pause_train",), 0.0)
    job.tell("ReportStopComplete")
    job.tell("ReplySwitchNicResult")
    assert job.hears("changeStrategy").strategy == "continue" and tasks == [1]
    job.result("continue")
    states = "WaitReportPauseComplete NotifySwitchNic WaitSwitchNicFinished NotifyContinueTrain"
    assert job.path() == f"Init NotifyPauseTrain {states} WaitContinueTrain Init"


def test_a_switch_that_fails_stops_the_training():
    job = Job()
    job.machine.operate("SwitchNic", lambda: None)
    job.hears("stopTrain")
    job.tell("ReportStopComplete")
    job.tell("ReplySwitchNicResult", 1)
    assert job.hears("stopTrain").actions == ("stop_train",)


def test_a_stress_test_has_several_ids():
    job = Job()
    job.machine.operate("StressTest", lambda: None)
    stop = job.hears("stopTrain")
    assert stop.timeout == 900
    job.tell("ReportStopComplete")
    pause = job.hears("pauseStartAgent")
    job.tell("ReplyStressTestResult")
    go, on = job.hears("continueStartAgent"), job.hears("changeStrategy")
    assert on.strategy == "continue" and on.uuid == go.uuid
    assert len({stop.uuid, pause.uuid, go.uuid}) == 3
    job.result("continue")
    assert job.path().endswith("WaitContinueTrain Init")


@pytest.mark.parametrize("able", [("migration",), ("exit",)])
def test_a_hot_switch_has_no_id(able):
    job = Job()
    job.machine.sub_healthy(1)
    signal = job.hears("hot-switch")
    assert (signal.uuid, signal.actions, len(signal.ranks)) == ("", ("hot switch",), 2)
    assert job.hears("hot-switch").actions == ("new pod running",)
    job.tell("ReportRecoverStrategy", strategies=able)
    if able == ("exit",):
        assert job.path().endswith("WaitReportPauseResult NotifyStopJob Init")
        return
    signal = job.hears("changeStrategy")
    assert (signal.uuid, signal.strategy) == ("", "migration")
    job.result("migration")
    assert job.path().endswith("WaitReportRestartTrainResult Init")


def test_a_hot_switch_without_a_new_pod():
    job = Job()
    job.machine.pods = False
    job.machine.sub_healthy(1)
    job.hears("hot-switch")
    assert job.hears("hot-switch").actions == ("stop switch",)
    assert job.path().endswith("WaitNewPod WaitNotifyPodFailedResult Init")

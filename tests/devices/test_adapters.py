"""What the adapters of the CPU and the NPU call, in which order and on which thread. torch_npu is a
stand-in (conftest.py): no accelerator is here."""

from __future__ import annotations

import threading

import pytest
import torch

from taskd.adaptor.mindio.utils import uce_utils as utils
from taskd.devices import Cpu, DeviceLost, Fault, FaultType, Npu
from tests.devices.conftest import NPU3, Group

HERE = threading.current_thread().name
UCE = Fault(FaultType.MEMORY, "UCE", "RuntimeError: UCE ERROR")
LINK = Fault(FaultType.NETWORK, "HCCL OP RETRY FAILED", "")
STOPPED = Fault(FaultType.OTHER, "FORCE STOP", "", stopped=True)


def test_a_cpu_has_nothing_to_stop():
    cpu = Cpu(torch.device("cpu"))
    assert not cpu.needs_abort
    cpu.abort()
    assert cpu.clean(Fault(FaultType.NETWORK, "gloo connection", "")) == "nothing"
    assert cpu.clean(Fault(FaultType.MEMORY, "halt", "", stopped=True)) == "nothing"
    with pytest.raises(DeviceLost, match="page: cpu cannot tell which memory is damaged"):
        cpu.clean(Fault(FaultType.MEMORY, "page", ""))
    cpu.restart()
    cpu.leave_collectives()
    cpu.synchronize()
    assert cpu.resume_communicators() is False


def test_abort_stops_the_device_of_this_rank_from_another_thread(torch_npu, calls, elsewhere):
    npu = Npu(NPU3)
    assert npu.needs_abort
    elsewhere(npu.abort)
    assert calls == [("set_device", (3,), "elsewhere"), ("stop_device", (3,), "elsewhere")]


def test_a_blocked_rank_is_stopped_cleaned_and_restarted(torch_npu, calls):
    """The whole of a repair in which every rank is alive, in the vendor's order."""
    npu, stopped, outcome = Npu(NPU3), threading.Event(), []
    plain = torch_npu.npu.stop_device

    def stop_device(device_id):
        result = plain(device_id)
        stopped.set()
        return result

    torch_npu.npu.stop_device = stop_device

    def train():
        try:
            assert stopped.wait(10)
            # what work on a stopped device raises
            raise RuntimeError("FORCE STOP, \n[ERROR] ERR00100 PTA call acl api failed")
        except RuntimeError as error:
            fault = npu.recognise(error)
        outcome.append(fault.stopped)
        outcome.append(npu.clean(fault))
        outcome.append(npu.resume_communicators())
        npu.restart()

    thread = threading.Thread(target=train, name="training")
    thread.start()
    npu.abort()
    thread.join(10)
    assert outcome == [True, "nothing", True]
    assert calls == [
        ("set_device", (3,), HERE),
        ("stop_device", (3,), HERE),
        ("reinit_process_group", (None, False), "training"),
        ("restart_device", (3, False, False), "training"),
    ]


@pytest.mark.parametrize(("answer", "lost"), [(2, "temporary"), (3, "state")])
def test_what_of_the_memory_is_lost(torch_npu, calls, answer, lost):
    torch_npu.answers.uce = answer
    npu = Npu(NPU3)
    npu.abort()
    assert npu.clean(UCE) == lost
    assert calls[-1] == ("check_uce_in_memory", (3,), HERE)


@pytest.mark.parametrize("answer", [0, 1, 4, None])
def test_memory_that_cannot_be_given_up(torch_npu, answer):
    torch_npu.answers.uce = answer
    npu = Npu(NPU3)
    npu.abort()
    with pytest.raises(DeviceLost, match=rf"UCE on npu:3: .* \(check_uce_in_memory: {answer}\)"):
        npu.clean(UCE)


@pytest.mark.parametrize(
    "fault", [None, LINK, STOPPED, Fault(FaultType.MEMORY, "halt", "", stopped=True)]
)
def test_memory_is_looked_at_after_memory_faults_only(torch_npu, calls, fault):
    npu = Npu(NPU3)
    npu.abort()
    assert npu.clean(fault) == "nothing"
    assert "check_uce_in_memory" not in calls.names()


def test_clean_stops_a_device_that_nobody_has_stopped(torch_npu, calls):
    npu = Npu(NPU3)
    npu.clean(LINK)
    npu.restart()
    assert calls.names() == ["set_device", "stop_device", "restart_device"]
    npu.clean(LINK)  # the next repair
    assert calls.names().count("stop_device") == 2


def test_clean_waits_for_a_stop_that_is_under_way(torch_npu, calls):
    npu, begun, end = Npu(NPU3), threading.Event(), threading.Event()

    def stop_device(device_id):
        begun.set()
        assert end.wait(10)
        calls.note("stop_device", device_id)
        return 0

    torch_npu.npu.stop_device = stop_device
    aborting = threading.Thread(target=npu.abort)
    aborting.start()
    assert begun.wait(10)
    cleaning = threading.Thread(target=lambda: calls.note(npu.clean(None)))
    cleaning.start()
    cleaning.join(0.1)
    assert cleaning.is_alive()
    end.set()
    aborting.join(10)
    cleaning.join(10)
    assert calls.names() == ["set_device", "stop_device", "nothing"]


def test_a_stop_that_fails(torch_npu, calls, caplog):
    torch_npu.answers.stop = 1
    npu = Npu(NPU3)
    npu.abort()
    assert "npu:3 could not be stopped; this rank will be replaced" in caplog.text
    with pytest.raises(DeviceLost, match=r"could not be stopped: stop_device\(3\) returned 1"):
        npu.clean(None)
    torch_npu.answers.stop = None  # older versions return nothing
    assert npu.clean(None) == "nothing"


def test_a_restart_that_fails(torch_npu):
    torch_npu.answers.restart = RuntimeError("error code is 507899")
    npu = Npu(NPU3)
    npu.abort()
    with pytest.raises(DeviceLost, match="npu:3 could not be restarted: error code is 507899"):
        npu.restart()
    torch_npu.answers.restart = None
    npu.restart()


def test_a_device_that_runs_is_not_restarted(torch_npu, calls):
    Npu(NPU3).restart()
    assert calls == []


def test_memory_is_looked_at_once_in_a_repair(torch_npu, calls):
    """The check empties torch_npu's cache; asked again it would say that the damage is outside the
    pool."""
    npu = Npu(NPU3)
    npu.abort()
    torch_npu.answers.uce = 2
    assert npu.clean(UCE) == "temporary"
    torch_npu.answers.uce = 1
    npu.abort()  # a second round of the incident
    assert npu.clean(UCE) == npu.clean(None) == "temporary"
    npu.restart()
    npu.abort()
    assert npu.clean(None) == "nothing"
    with pytest.raises(DeviceLost):
        npu.clean(UCE)
    assert calls.names().count("check_uce_in_memory") == 2


def test_communicators_that_cannot_be_resumed(torch_npu, caplog):
    torch_npu.answers.resume = RuntimeError("HCCL function error: HcclCommResume")
    assert Npu(NPU3).resume_communicators() is False
    assert "will be rebuilt: HCCL function error: HcclCommResume" in caplog.text


def test_tensors_that_will_be_overwritten_are_safe(torch_npu, calls):
    tensors = [torch.zeros(1), torch.ones(2)]
    Npu(NPU3).will_overwrite(tensors)
    assert [arguments[0] is t for (_, arguments, _), t in zip(calls, tensors, strict=True)] == [
        True,
        True,
    ]
    assert set(calls.names()) == {"update_npu_tensor_to_safe"}


class Hccl:
    def __init__(self, calls, name, error=None):
        self.calls, self.name, self.error = calls, name, error

    def abort_hccl_comm(self, reason):
        assert isinstance(reason, str)
        self.calls.note("abort_hccl_comm", self.name)
        if self.error:
            raise self.error


def test_hccl_communicators_are_aborted_before_they_are_replaced(torch_npu, calls, groups, caplog):
    groups(
        a=Group("npu", Hccl(calls, "a", RuntimeError("already gone"))),
        b=Group("cpu", object()),
        c=Group("npu", Hccl(calls, "c")),
    )
    Npu(NPU3).leave_collectives()
    assert [a for _, a, _ in calls] == [("a",), ("c",)]
    assert "could not be aborted before it is replaced" in caplog.text


def test_a_device_without_a_number(torch_npu, calls):
    npu = Npu(type(NPU3)(type="npu", index=None))
    npu.synchronize()
    assert calls == [("current_device", (), HERE), ("synchronize", (3,), HERE)]


def test_the_time_is_the_device_s_own(torch_npu, calls, monkeypatch):
    """What mindio_ttp's window of an update is measured in."""
    monkeypatch.setattr(torch, "npu", torch_npu.npu, raising=False)
    monkeypatch.setattr(utils, "_last", {})
    utils.tft_set_update_start_time()
    assert [name for name, *_ in calls] == ["Event", "record", "event_synchronize"]
    assert utils.tft_can_do_uce_repair(7_000_001) and not utils.tft_can_do_uce_repair(7_000_000)


def test_network_cards_and_stress_tests(torch_npu, calls):
    npu = Npu(NPU3)
    assert npu.switch_nics((0, 3), (True, False))
    torch_npu.answers.nics, torch_npu.answers.stress = False, 2
    assert not npu.switch_nics((0,), (True,))
    assert (npu.stress_test("aic"), npu.stress_test("p2p")) == (2, 2)
    assert calls.names()[-4:] == [
        "_comm_switch_nic",
        "_comm_switch_nic",
        "stress_detect",
        "stress_detect",
    ]


def test_a_device_without_network_cards_or_tests_says_so():
    cpu = Cpu(torch.device("cpu"))
    for task in (lambda: cpu.switch_nics((0,), (True,)), lambda: cpu.stress_test("aic")):
        with pytest.raises(NotImplementedError, match="cpu has no"):
            task()


def test_ranges_of_the_vendors_profiler(torch_npu, calls):
    end = Npu(NPU3).mark("Step step")
    end()
    assert calls.names()[-2:] == ["range_start", "range_end"]

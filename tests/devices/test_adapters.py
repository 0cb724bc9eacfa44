"""What the adapters call, in which order and on which thread. torch_npu and NCCL are stand-ins
(conftest.py): no accelerator is here."""

from __future__ import annotations

import gc
import logging
import threading
import weakref

import pytest
import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from taskd.devices import Cpu, Cuda, DeviceLost, Fault, FaultType, Npu
from tests.devices.conftest import NPU3, Backend, Group

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
    with pytest.raises(DeviceLost, match="page: which memory is damaged cannot be told on cpu"):
        cpu.clean(Fault(FaultType.MEMORY, "page", ""))
    cpu.restart()
    cpu.leave_collectives()
    cpu.synchronize()
    assert cpu.resume_communicators() is False


# -- NPU -------------------------------------------------------------------------------------------


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
    assert "are built anew: HCCL function error: HcclCommResume" in caplog.text


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


# -- CUDA ------------------------------------------------------------------------------------------


@pytest.fixture
def cuda():
    return Cuda(torch.device("cuda", 1))


def test_abort_frees_a_blocked_rank(cuda, calls, groups):
    backend, outcome = Backend(calls, "world"), []

    def train():
        assert backend.aborted.wait(10)
        try:
            raise dist.DistBackendError("NCCL communicator was aborted on rank 1. ")
        except RuntimeError as error:
            outcome.append(cuda.recognise(error))

    assert cuda.needs_abort
    group = Group("cuda", backend)
    groups(default_pg=group)
    thread = threading.Thread(target=train)
    thread.start()
    cuda.abort()
    thread.join(10)
    assert [(f.name, f.stopped) for f in outcome] == [("NCCL abort", True)]
    assert calls.names() == ["group_start", "abort", "group_end"]
    assert list(c10d._world.pg_names) == [group]  # the training thread may still ask for its rank


def test_abort_runs_in_the_thread_that_asked(cuda, calls, groups, elsewhere):
    groups(default_pg=Group("cuda", Backend(calls, "world")))
    elsewhere(cuda.abort)
    assert {thread for _, _, thread in calls} == {"elsewhere"}


def test_all_groups_are_aborted_within_one_nccl_group(cuda, calls, groups):
    groups(
        **{name: Group("cuda", Backend(calls, name)) for name in ("0", "1", "2")},
        gloo=Group("cpu", object()),
    )
    cuda.abort()
    assert [(name, arguments[0]) for name, arguments, _ in calls] == [
        ("group_start", "0"),
        ("abort", "2"),
        ("abort", "1"),
        ("abort", "0"),
        ("group_end", "0"),
    ]


def test_a_communicator_is_aborted_once(cuda, calls, groups):
    old, new = Backend(calls, "old"), Backend(calls, "new")
    groups(default_pg=Group("cuda", old))
    cuda.abort()
    cuda.abort()  # a second pause of the same incident
    cuda.leave_collectives()
    groups(default_pg=Group("cuda", new))
    cuda.abort()
    assert [a[0] for name, a, _ in calls if name == "abort"] == ["old", "new"]


def test_communicators_that_were_left_are_let_go(cuda, calls, groups):
    """Whoever drops a group decides where its destructor runs."""
    backend = Backend(calls, "world")
    gone = weakref.ref(backend)
    groups(default_pg=Group("cuda", backend))
    cuda.abort()
    cuda.leave_collectives()
    groups()
    del backend
    gc.collect()
    assert gone() is None


def test_communicators_are_left_by_an_abort_too(cuda, calls, groups):
    """destroy_process_group would wait for kernels of a peer that is gone."""
    groups(default_pg=Group("cuda", Backend(calls, "world")))
    cuda.leave_collectives()
    assert calls.names() == ["group_start", "abort", "group_end"]


def test_an_abort_that_fails_is_told_and_ends(cuda, calls, groups, caplog):
    failing = Backend(calls, "1", error=RuntimeError("ProcessGroup abort timed out"))
    groups(a=Group("cuda", Backend(calls, "0")), b=Group("cuda", failing))
    cuda.abort()
    assert calls.names() == ["group_start", "abort", "abort", "group_end"]
    assert (
        "this rank will be replaced if it stays blocked" in caplog.text
        and "ProcessGroup abort timed out" in caplog.text
    )


def test_gloo_groups_are_left_alone(cuda, caplog):
    """A real one: gloo serves CUDA tensors too, and cannot be aborted."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with caplog.at_level(logging.INFO):
            cuda.abort()
            cuda.leave_collectives()
        dist.all_reduce(torch.zeros(1))
        assert caplog.text == ""
    finally:
        dist.destroy_process_group()


def test_nothing_to_abort(cuda, calls):
    assert not dist.is_initialized()
    cuda.abort()
    cuda.leave_collectives()


@pytest.mark.parametrize("name", ["CUDA ECC", "CUDA NVLINK", "CUDA CONTAINED"])
def test_a_context_that_is_lost(cuda, cuda_synchronize, name):
    """The process is given up without asking the device, which might not answer."""
    with pytest.raises(DeviceLost, match=f"{name} on cuda:1: its CUDA context is unusable"):
        cuda.clean(Fault(FaultType.MEMORY, name, ""))


def test_a_sticky_error_that_came_as_a_failed_collective(cuda, cuda_synchronize):
    cuda_synchronize.error = torch.AcceleratorError(
        "CUDA error: unspecified launch failure\nCompile with"
    )
    with pytest.raises(
        DeviceLost,
        match="cuda:1 repeats an error: AcceleratorError: CUDA error: unspecified launch failure$",
    ):
        cuda.clean(Fault(FaultType.NETWORK, "NCCL CUDA", ""))


@pytest.mark.parametrize(
    "fault",
    [
        None,
        Fault(FaultType.NETWORK, "NCCL REMOTE", ""),
        Fault(FaultType.NETWORK, "NCCL abort", "", True),
    ],
)
def test_a_context_that_works(cuda, cuda_synchronize, calls, fault):
    assert cuda.clean(fault) == "nothing"
    assert calls == [("synchronize", (torch.device("cuda", 1),), HERE)]
    assert cuda.resume_communicators() is False
    cuda.restart()


def test_a_memory_fault_that_a_user_has_named(cuda, cuda_synchronize):
    with pytest.raises(DeviceLost, match="which memory is damaged cannot be told on cuda"):
        cuda.clean(Fault(FaultType.MEMORY, "row remap", ""))


def test_clean_waits_for_an_abort_that_is_under_way(cuda, calls, groups, cuda_synchronize):
    begun, end = threading.Event(), threading.Event()
    backend = Backend(calls, "world")

    def abort():
        begun.set()
        assert end.wait(10)
        calls.note("abort")

    backend.abort = abort
    groups(default_pg=Group("cuda", backend))
    aborting, cleaning = (
        threading.Thread(target=cuda.abort),
        threading.Thread(target=cuda.clean, args=(None,)),
    )
    aborting.start()
    assert begun.wait(10)
    cleaning.start()
    cleaning.join(0.1)
    assert cleaning.is_alive()
    end.set()
    aborting.join(10)
    cleaning.join(10)
    assert calls.names() == ["group_start", "abort", "group_end", "synchronize"]

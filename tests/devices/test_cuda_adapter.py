"""What the adapter of CUDA calls, in which order and on which thread. NCCL is a stand-in
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

from taskd.devices import Cuda, DeviceLost, Fault, FaultType, nccl
from tests.devices.conftest import FakeNCCL, Group

HERE = threading.current_thread().name


@pytest.fixture
def cuda():
    return Cuda(torch.device("cuda", 1))


def test_abort_frees_a_blocked_rank(cuda, calls, groups):
    backend, outcome = FakeNCCL(calls, "world"), []

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
    assert calls.names() == ["abort"]
    assert list(c10d._world.pg_names) == [group]  # the training thread may still ask for its rank


def test_no_abort_waits_for_another(cuda, calls, groups):
    """NCCL's waits for what its communicator has queued, which another one's may hold up."""
    first, second = FakeNCCL(calls, "1"), FakeNCCL(calls, "2")
    first.waits_for, second.waits_for = second.aborted, first.aborted
    groups(a=Group("cuda", first), b=Group("cuda", second), gloo=Group("cpu", object()))
    cuda.abort()
    assert sorted(a[0] for name, a, _ in calls if name == "abort") == ["1", "2"]


def test_an_abort_that_does_not_end_is_told(cuda, calls, groups, caplog, monkeypatch):
    monkeypatch.setattr(nccl, "LIMIT", 0.1)
    stuck = FakeNCCL(calls, "1")
    stuck.waits_for = threading.Event()
    groups(a=Group("cuda", stuck), b=Group("cuda", FakeNCCL(calls, "2")))
    cuda.abort()
    assert "1 of 2 NCCL communicators have not ended within 0.1 s" in caplog.text
    stuck.waits_for.set()


def test_a_communicator_is_aborted_once(cuda, calls, groups):
    old, new = FakeNCCL(calls, "old"), FakeNCCL(calls, "new")
    groups(default_pg=Group("cuda", old))
    cuda.abort()
    cuda.abort()  # a second pause of the same incident
    cuda.leave_collectives()
    groups(default_pg=Group("cuda", new))
    cuda.abort()
    assert [a[0] for name, a, _ in calls if name == "abort"] == ["old", "new"]


def test_communicators_that_were_left_are_let_go(cuda, calls, groups):
    """Whoever drops a group decides where its destructor runs."""
    backend = FakeNCCL(calls, "world")
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
    groups(default_pg=Group("cuda", FakeNCCL(calls, "world")))
    cuda.leave_collectives()
    assert calls.names() == ["abort"]


def test_an_abort_that_fails_is_told_and_ends(cuda, calls, groups, caplog):
    failing = FakeNCCL(calls, "1", error=RuntimeError("ProcessGroup abort timed out"))
    groups(a=Group("cuda", FakeNCCL(calls, "0")), b=Group("cuda", failing))
    cuda.abort()
    assert calls.names() == ["abort", "abort"]
    assert "this rank will be replaced if it stays blocked" in caplog.text
    assert "ProcessGroup abort timed out" in caplog.text


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
    with pytest.raises(DeviceLost, match="cuda cannot tell which memory is damaged"):
        cuda.clean(Fault(FaultType.MEMORY, "row remap", ""))


def test_clean_waits_for_an_abort_that_is_under_way(cuda, calls, groups, cuda_synchronize):
    begun, end = threading.Event(), threading.Event()
    backend = FakeNCCL(calls, "world")

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
    assert calls.names() == ["abort", "synchronize"]

"""torch_npu's files, and stand-ins for what is not on this machine. They record each call and the
thread that made it; nothing here is part of taskd."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
import torch.distributed.distributed_c10d as c10d

from taskd.devices import faults

ROOT = Path(__file__).parents[2]
NAMED = os.environ.get("TEST_TORCH_NPU")
PLACES = [Path(NAMED)] if NAMED else [ROOT / ".venv" / "torch_npu", Path(sys.prefix) / "torch_npu"]
FOUND = next((p for p in PLACES if (p / "torch_npu" / "version.py").is_file()), None)


@pytest.fixture(scope="session")
def wheel():
    """torch_npu cannot be imported without an NPU's software, so its files are read: in
    .venv/torch_npu, where `make test` puts what is needed of the wheel, or in the folder that
    TEST_TORCH_NPU names (one that has torch_npu/ in it)."""
    if FOUND is None and NAMED:
        pytest.fail(f"TEST_TORCH_NPU={NAMED}: there is no torch_npu/version.py in it")
    if FOUND is None:
        pytest.skip(
            "torch_npu's files are not here: make test fetches them, or TEST_TORCH_NPU names"
            " the folder they are in"
        )
    return FOUND


@pytest.fixture(scope="session")
def library(wheel):
    return (wheel / "torch_npu" / "lib" / "libtorch_npu.so").read_bytes()


class Calls(list):
    """(name, arguments, name of the thread), in order."""

    def note(self, name, *arguments):
        self.append((name, arguments, threading.current_thread().name))

    def names(self):
        return [name for name, _, _ in self]


@pytest.fixture
def calls():
    return Calls()


@pytest.fixture(autouse=True)
def no_patterns_of_other_tests(monkeypatch):
    monkeypatch.setattr(faults, "_registered", ())


NPU3 = SimpleNamespace(type="npu", index=3)  # torch.device("npu", 3) needs torch_npu


@pytest.fixture
def torch_npu(monkeypatch, calls):
    """The part of torch_npu that taskd uses, with the signatures of 2.13.0
    (test_torch_npu_signatures.py compares them)."""
    module = ModuleType("torch_npu")
    module.answers = SimpleNamespace(stop=0, uce=0, resume=None, restart=None, nics=True, stress=0)

    def current_device():
        calls.note("current_device")
        return 3

    def set_device(device):
        calls.note("set_device", device)

    def stop_device(device_id):
        calls.note("stop_device", device_id)
        return module.answers.stop

    def check_uce_in_memory(device_id):
        calls.note("check_uce_in_memory", device_id)
        return module.answers.uce

    def restart_device(device_id, rebuild_all_resources=False, disable_tensor_unsafe_check=False):
        calls.note("restart_device", device_id, rebuild_all_resources, disable_tensor_unsafe_check)
        if module.answers.restart:
            raise module.answers.restart

    def synchronize(device=None):
        calls.note("synchronize", device)

    def _comm_switch_nic(ranks, useBackup):
        calls.note("_comm_switch_nic", ranks, useBackup)
        return module.answers.nics

    def stress_detect(detect_type="aic"):
        calls.note("stress_detect", detect_type)
        return module.answers.stress

    def update_npu_tensor_to_safe(tensor_obj):
        calls.note("update_npu_tensor_to_safe", tensor_obj)

    def reinit_process_group(group=None, rebuild_link=True):
        calls.note("reinit_process_group", group, rebuild_link)
        if module.answers.resume:
            raise module.answers.resume

    class Event:
        def __init__(self, enable_timing=False, blocking=False, interprocess=False):
            assert enable_timing
            calls.note("Event")

        def record(self, stream=None):
            calls.note("record")

        def synchronize(self):
            calls.note("event_synchronize")

        def recorded_time(self):
            return 7_000_000

    def range_start(message, stream=None, domain="default"):
        calls.note("range_start", message)
        return 7

    def range_end(range_id, domain="default"):
        calls.note("range_end", range_id)

    module.npu = SimpleNamespace(
        Event=Event,
        current_device=current_device,
        set_device=set_device,
        stop_device=stop_device,
        check_uce_in_memory=check_uce_in_memory,
        restart_device=restart_device,
        synchronize=synchronize,
        _comm_switch_nic=_comm_switch_nic,
        stress_detect=stress_detect,
        _recovery=SimpleNamespace(update_npu_tensor_to_safe=update_npu_tensor_to_safe),
        mstx=SimpleNamespace(range_start=range_start, range_end=range_end),
    )
    module.distributed = SimpleNamespace(reinit_process_group=reinit_process_group)
    monkeypatch.setitem(sys.modules, "torch_npu", module)
    return module


class FakeNCCL:
    """An NCCL backend as torch shows it to Python."""

    def __init__(self, calls, name, error=None):
        self.calls, self.name, self.error, self.aborted = calls, name, error, threading.Event()
        self.waits_for = None

    def abort(self):
        self.calls.note("abort", self.name)
        if self.error:
            raise self.error
        self.aborted.set()
        if self.waits_for is not None:
            assert self.waits_for.wait(10)


class Group:
    """A process group that serves one type of device."""

    def __init__(self, kind, backend):
        self._device_types, self.backend = [SimpleNamespace(type=kind)], backend

    def _get_backend(self, device):
        if device.type != self._device_types[0].type:
            raise RuntimeError(f"No backend type associated with device type {device.type}")
        return self.backend


@pytest.fixture
def groups(monkeypatch):
    """Makes torch.distributed know the given groups, by name, and no others."""

    names, groups = {}, {}
    monkeypatch.setattr(c10d, "_pg_names", names)
    monkeypatch.setattr(c10d, "_pg_map", groups)

    def know(**known):
        names.clear(), groups.clear()
        names.update((group, name) for name, group in known.items())
        groups.update((group, (name, None)) for name, group in known.items())

    return know


@pytest.fixture
def cuda_synchronize(monkeypatch, calls):
    """torch.cuda.synchronize, recorded; `.error` is what it raises."""
    state = SimpleNamespace(error=None)

    def synchronize(device=None):
        calls.note("synchronize", device)
        if state.error:
            raise state.error

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    return state


@pytest.fixture
def elsewhere():
    """Run a function in a thread named "elsewhere" and wait for it."""

    def run(function):
        thread = threading.Thread(target=function, name="elsewhere")
        thread.start()
        thread.join(10)
        assert not thread.is_alive()

    return run

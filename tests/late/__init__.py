"""A device of the CPU that is as late as a GPU.

Its tensors have a device of their own ("late:0") and memory that only queued work touches. Streams,
events and collectives are those of `streams.cpp` and `backend.cpp`: what the host calls is executed
later, in the stream's thread, and an abort of a communicator ends its collectives with garbage in
their outputs, behind which the queue runs on. Collectives of CPU tensors are refused, as NCCL's
are. `waits()` has each call by which the host has waited for the device.

`use()` makes it known to torch and taskd. It cannot be forked once it has been used.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import hashlib
import importlib.util
import os
import subprocess
import sysconfig
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch.utils import cpp_extension

from taskd import devices
from taskd.devices import nccl, tables
from taskd.devices.device import Device

HERE = Path(__file__).parent
SOURCES = ("streams.cpp", "operators.cpp", "backend.cpp")


@functools.cache
def extension() -> Any:
    """The compiled device: built once for each torch and version of its sources."""
    sources = [HERE / name for name in SOURCES]
    digest = hashlib.sha256(torch.__version__.encode())
    for path in (*sources, HERE / "late.h"):
        digest.update(path.read_bytes())
    where = HERE / "build" / digest.hexdigest()[:16]
    built = where / "taskd_late.so"
    if not built.exists():
        where.mkdir(parents=True, exist_ok=True)
        with open(where / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not built.exists():
                _build(sources, built)
    spec = importlib.util.spec_from_file_location("taskd_late", built)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _build(sources: list[Path], to: Path) -> None:
    abi = int(torch._C._GLIBCXX_USE_CXX11_ABI)
    flags = ["-O1", "-fPIC", "-std=c++20", "-w", f"-D_GLIBCXX_USE_CXX11_ABI={abi}"]
    flags += ["-DTORCH_EXTENSION_NAME=taskd_late", f"-I{sysconfig.get_path('include')}"]
    flags += [f"-I{path}" for path in cpp_extension.include_paths()]
    objects = [to.with_name(f"{path.stem}.o") for path in sources]
    compiler = os.environ.get("CXX", "g++")
    compiling = [
        subprocess.Popen([compiler, *flags, "-c", str(path), "-o", str(made)])
        for path, made in zip(sources, objects, strict=True)
    ]
    ended = [process.wait() for process in compiling]
    assert not any(ended), "the late device does not compile"
    libraries = [f"-L{Path(torch.__file__).parent / 'lib'}", "-lc10", "-ltorch_cpu", "-ltorch"]
    libraries.append("-ltorch_python")
    beside = to.with_suffix(".new")
    linking = [compiler, "-shared", "-o", str(beside), *map(str, objects), *libraries]
    subprocess.run(linking, check=True)
    beside.rename(to)


class Module(ModuleType):
    """torch.late."""

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def set_device(self, device: Any) -> None:
        pass

    def synchronize(self, device: Any = None) -> None:
        extension().synchronize()

    def Stream(self, device: Any = None, priority: int = 0) -> torch.Stream:
        return torch.Stream(device="late")

    def Event(self, enable_timing: bool = False, blocking: bool = False) -> torch.Event:
        return torch.Event("late", enable_timing=enable_timing, blocking=blocking)

    def current_stream(self, device: Any = None) -> torch.Stream:
        return torch.accelerator.current_stream("late")

    @contextlib.contextmanager
    def stream(self, stream: torch.Stream) -> Iterator[None]:
        before = self.current_stream()
        torch.accelerator.set_stream(stream)
        try:
            yield
        finally:
            torch.accelerator.set_stream(before)

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return torch.zeros(16, dtype=torch.uint8)  # it draws no numbers

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        pass

    def manual_seed_all(self, seed: int) -> None:
        pass

    def _is_in_bad_fork(self) -> bool:
        return False

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]


class Graph:
    """As torch.cuda.CUDAGraph: keeps what is queued while it captures, and queues it again."""

    def __init__(self) -> None:
        self._graph = extension().Graph()

    def capture_begin(self) -> None:
        self._graph.begin()

    def capture_end(self) -> None:
        self._graph.end()

    def replay(self) -> None:
        self._graph.replay()


def create(store: dist.Store, rank: int, size: int, timeout: timedelta) -> Any:
    gloo = dist.ProcessGroupGloo(store, rank, size, timeout)
    return extension().LateBackend(gloo, rank, size)


@functools.cache
def use() -> Any:
    """Make the device known; returns the compiled module."""
    late = extension()
    torch.utils.rename_privateuse1_backend("late")
    torch._register_device_module("late", Module("torch.late"))
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    dist.Backend.register_backend("late", create, devices=["late"])
    devices.register("late", Late)
    atexit.register(_end)
    torch.cuda.CUDAGraph = Graph
    return late


def _end() -> None:
    """Tasks may hold objects of the interpreter, which ends."""
    extension().synchronize()
    extension().hold(True)


class Late(Device):
    """As taskd.devices.Cuda; with LATE_STOPS in the environment as Npu, which has no communicators
    to abort: all that is queued is dropped."""

    needs_abort = runs_late = True
    stops_updates = bool(os.environ.get("LATE_STOPS"))
    table = (*tables.NPU, *tables.NCCL, *tables.GLOO, *tables.TORCH)

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._aborting = threading.Lock()

    def abort(self) -> None:
        with self._aborting:
            if self.stops_updates:
                extension().stop(True)
            nccl.abort(self._backends())

    def _backends(self) -> list[Any]:
        found = []
        for group in list(dist.distributed_c10d._world.pg_map):
            with contextlib.suppress(RuntimeError):
                found.append(group._get_backend(self.device))
        return [backend for backend in found if isinstance(backend, extension().LateBackend)]

    def clean(self, fault: Any) -> Any:
        with self._aborting:
            pass
        lost = super().clean(fault)
        self.synchronize()
        return lost

    def restart(self) -> None:
        extension().stop(False)

    def register(self, memory: torch.Tensor) -> str:
        if os.environ.get("LATE_UNREGISTERED"):
            return "LATE_UNREGISTERED is set"
        extension().register_memory(memory.data_ptr(), memory.nbytes)
        return ""

    def unregister(self, memory: torch.Tensor) -> None:
        extension().unregister_memory(memory.data_ptr())

    def leave_collectives(self) -> None:
        nccl.abort(self._backends())

    def synchronize(self) -> None:
        extension().synchronize()

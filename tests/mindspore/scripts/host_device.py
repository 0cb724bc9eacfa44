"""In place of an Ascend device, for MindSpore's own training loop and fault-tolerance callback on
the CPU. What is substituted, and nothing else:

- the answer to get_context("device_target"), in the two modules of the fault tolerance;
- the device calls that the callback imports: stop, repair, clean, groups, send and receive;
- the tests of a device and the switch of its network cards, which MindSpore has on Ascend alone;
- the three operators that the optimizer's wrapper adds, of which two have no CPU kernel;
- in PyNative mode MCCL's collectives, by sums over TCP: a group of MCCL cannot be made anew in a
  living process. `init()`, rank and world size remain MindSpore's.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
from mindspore import Tensor, nn, ops, tools
from mindspore.communication import management
from mindspore.train.callback import _train_fault_tolerance as fault_tolerance
from mindspore.utils import utils

FORCE_STOP = "ForceStopError error occurs when execute"
LIMIT = 20.0  # seconds


class Hosts:
    """A full mesh of connections between the ranks, over which arrays are summed in rank order: so
    the sum is the same for every group."""

    def __init__(self, rank: int, world: int, port: int) -> None:
        self.rank, self.world, self.port = rank, world, port
        self.listener = socket.create_server(("127.0.0.1", port + rank), backlog=64)
        self.peers: dict[int, socket.socket] = {}
        self.stopped = False

    def connect(self) -> None:
        """Connect to the ranks below, and accept those above."""
        self.close()
        due = time.monotonic() + LIMIT
        for peer in range(self.rank):
            self.peers[peer] = self._dial(peer, due)
        while len(self.peers) < self.world - 1:
            self.listener.settimeout(max(due - time.monotonic(), 0.01))
            line, _ = self.listener.accept()
            line.settimeout(LIMIT)
            (peer,) = struct.unpack("<i", self._read(line, 4))
            if (old := self.peers.get(peer)) is not None:
                old.close()
            line.sendall(b"!")
            self.peers[peer] = line
        for line in self.peers.values():
            line.settimeout(None)
        self.stopped = False

    def _dial(self, peer: int, due: float) -> socket.socket:
        while True:
            try:
                line = socket.create_connection(("127.0.0.1", self.port + peer), 1.0)
                line.sendall(struct.pack("<i", self.rank))
                line.settimeout(max(due - time.monotonic(), 0.01))
                self._read(line, 1)
                return line
            except (OSError, RuntimeError):
                if time.monotonic() > due:
                    raise
                time.sleep(0.01)

    def _read(self, line: socket.socket, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = line.recv(size - len(data))
            if not part:
                raise RuntimeError(FORCE_STOP)
            data += part
        return data

    def stop(self) -> None:
        self.stopped = True
        for line in list(self.peers.values()):
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for line in self.peers.values():
            line.close()
        self.peers = {}

    def send(self, array: np.ndarray, peer: int) -> None:
        self.peers[peer].sendall(np.ascontiguousarray(array).tobytes())

    def receive(self, like: np.ndarray, peer: int) -> np.ndarray:
        data = self._read(self.peers[peer], like.nbytes)
        return np.frombuffer(data, like.dtype).reshape(like.shape).copy()

    def sum(self, array: np.ndarray) -> np.ndarray:
        try:
            sender = threading.Thread(target=self._give, args=(array,))
            sender.start()
            parts = {r: self.receive(array, r) for r in sorted(self.peers)}
            sender.join()
        except OSError:
            raise RuntimeError(FORCE_STOP) from None
        total = np.zeros_like(array)
        for rank in range(self.world):
            total = total + (array if rank == self.rank else parts[rank])
        return total

    def _give(self, array: np.ndarray) -> None:
        for peer in sorted(self.peers):
            try:
                self.send(array, peer)
            except OSError:
                return


class _Context:
    """mindspore.context, but on an Ascend device."""

    def __getattr__(self, name: str) -> Any:
        return getattr(mindspore.context, name)

    @staticmethod
    def get_context(key: str) -> Any:
        return {"device_target": "Ascend", "device_id": 0}.get(key) or mindspore.get_context(key)


class _Collectives:
    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts

    def get_instance(self) -> _Collectives:
        return self

    def resume_hccl_comm(self) -> None:
        self._hosts.connect()


class _Pass(nn.Cell):
    """Stands in for an operator: gives back its last argument, times `factor`."""

    def __init__(self, factor: int = 1) -> None:
        super().__init__()
        self.factor = factor

    def construct(self, *arguments: Any) -> Any:
        return arguments[-1] * self.factor


def without_operators(optimizer: Any, world: int) -> None:
    optimizer.report, optimizer.report_end = _Pass(), _Pass()
    optimizer.allreduce_sum = _Pass(world)


def install(hosts: Hosts) -> None:
    """Put the substitutes in place; fails if MindSpore has lost one of the names."""
    utils.context = fault_tolerance.context = _Context()

    def send_recv(parameters: list[Any], source: int, destination: int) -> int:
        for parameter in parameters:
            array = parameter.asnumpy()
            if hosts.rank == source:
                hosts.send(array, destination)
            elif hosts.rank == destination:
                ops.assign(parameter, Tensor(hosts.receive(array, source)))
        return 0

    substitutes = {
        "_stop_device": lambda device: hosts.stop(),
        "_repair_device": lambda device: None,
        "clean_tdt_channel": lambda: None,
        "_get_uce_mem_info": lambda device: None,
        "_get_uce_process_strategy": lambda: "RS_UCE_HIGHLEVEL",
        "_finalize_comm": hosts.close,
        "_rebuild_group": hosts.connect,
        "_pre_launch_send_recv": lambda device: None,
        "send_recv": send_recv,
        "reset_params": lambda parameters: 0,
        "CollectiveManager": _Collectives(hosts),
    }
    for name, substitute in substitutes.items():
        assert hasattr(fault_tolerance, name), name
        setattr(fault_tolerance, name, substitute)
    _install_tests(hosts.rank)


def _install_tests(rank: int) -> None:
    """nics.N: what rank N switches. stress.N: what its test returns."""

    def switch(global_ranks: list[int], use_backup: list[bool]) -> bool:
        Path(f"nics.{rank}").write_text(f"{global_ranks} {use_backup}")
        return True

    def detect(detect_type: str = "aic") -> int:
        Path(f"tested.{rank}").write_text(f"{detect_type} {threading.current_thread().name}")
        told = Path(f"stress.{rank}")
        return int(told.read_text()) if told.exists() else 0

    for module, name, substitute in (
        (management, "_comm_switch_nic", switch),
        (tools, "stress_detect", detect),
    ):
        assert hasattr(module, name), name
        setattr(module, name, substitute)


def ports() -> int:
    return int(os.environ["HOST_PORT"])

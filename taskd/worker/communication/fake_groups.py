"""Groups of torch's fake backend, which sends nothing and waits for no rank."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

FAKE = "fake"


def fake(backend: str | None) -> str:
    """What to ask torch for in place of `backend`, for the same devices and no others: a stand-in
    that served the CPU besides would go on to serve it once NCCL serves the GPU."""
    from torch.testing._internal.distributed import fake_pg  # registers it

    asked = c10d.Backend(backend if backend is not None else "undefined")
    return ",".join(f"{d}:{FAKE}" for d in c10d.BackendConfig(asked).get_device_backend_map())


@contextmanager
def aside(rank: int, world_size: int) -> Iterator[None]:
    """Replace the default group by one of torch's fake backend inside the context; afterwards the
    original is back, untouched."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    group, count = c10d._world.default_pg, c10d._world.group_count
    name = fake(dist.get_backend_config())
    c10d._update_default_pg(None)
    try:
        dist.init_process_group(name, store=FakeStore(), rank=rank, world_size=world_size)
        stand_in = dist.group.WORLD
    except BaseException:
        c10d._update_default_pg(group)
        raise
    try:
        yield
    finally:
        c10d._update_default_pg(group)
        dist.destroy_process_group(stand_in)
        c10d._world.group_count = count


class Alone(dist.ProcessGroup):
    """A group of this rank only, for tensors of any device, which torch does not know: it is no
    part of its tables. What DDP needs of it."""

    def __init__(self) -> None:
        super().__init__(0, 1)  # type: ignore[call-arg]

    def allreduce(  # type: ignore[override]
        self, tensors: list[torch.Tensor], *_: Any
    ) -> dist.Work:
        return _Done(tensors)

    broadcast = allreduce  # type: ignore[assignment]

    def getBackendName(self) -> str:
        return "alone"


class _Done(dist.Work):
    def __init__(self, tensors: list[torch.Tensor]) -> None:
        super().__init__()
        devices = {t.device for t in tensors if t.device.type != "cpu"}
        self._future: Any = torch.futures.Future(devices=[*devices])
        self._future.set_result(tensors)

    def wait(self, *_: Any) -> bool:
        return True

    def get_future(self) -> Any:
        return self._future


@cache
def alone() -> Alone:
    return Alone()

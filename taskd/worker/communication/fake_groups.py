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


def fake() -> str:
    """The backend's name, once it serves this process's device too: torch knows it for its own
    kinds of devices only."""
    from torch.testing._internal.distributed import fake_pg  # noqa: F401  (registers it)

    served, other = c10d.Backend.backend_capability[FAKE], torch._C._get_privateuse1_backend_name()
    if other != "privateuseone" and other not in served:
        served.append(other)
    return FAKE


@contextmanager
def aside(rank: int, world_size: int) -> Iterator[None]:
    """Replace the default group by one of torch's fake backend inside the context; afterwards the
    original is back, untouched."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    group, count = c10d._world.default_pg, c10d._world.group_count
    c10d._update_default_pg(None)
    try:
        dist.init_process_group(fake(), store=FakeStore(), rank=rank, world_size=world_size)
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

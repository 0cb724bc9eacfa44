"""The job's process group, generation by generation.

Every group that taskd makes is built on a store that an agent hosts, between `sockets_begin` and
`sockets_end`, so that its connections are known and an interruption can cut them. A separate thread
drops the previous group: gloo's destructor takes 10 ms per pair.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from taskd.cython_api import sockets

log = logging.getLogger("taskd.worker")


class Communicators:
    """Remembers how the script made its group and makes it again. Raises ValueError if there is
    none."""

    def __init__(self) -> None:
        group = dist.group.WORLD
        if group is None:
            raise ValueError(
                "torch.distributed is not initialized: call init_process_group() before protect()"
            )
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        # as the script gave it; get_backend() must keep returning it
        name = c10d._world.pg_map[group][0]
        self.backend: str | None = None if name == "undefined" else name
        self.timeout = _timeout(group)
        self.generation = 0
        self._by_group = True  # the group itself gives its backend's count

    @classmethod
    def remembered(
        cls, rank: int, world_size: int, backend: str | None, timeout: timedelta | None
    ) -> Communicators:
        """For a replacement, whose script requested a group that was not made."""
        self = cls.__new__(cls)
        self.rank, self.world_size, self.generation = rank, world_size, 0
        self.backend, self._by_group = backend, True
        self.timeout = timeout or c10d.default_pg_timeout
        return self

    @staticmethod
    def sub_groups() -> int:
        """The number of groups besides the default one, which this version cannot rebuild."""
        return len(c10d._world.pg_map) - 1

    def begun(self) -> int:
        """The number of collectives that this process has begun on the current group; 0 if its
        backend does not count."""
        group: Any = c10d._world.default_pg
        if group is None:
            return 0
        try:
            # keep no reference: it would keep the connections
            counts = group if self._by_group else group._get_backend(group._device_types[0])
            return int(counts._get_sequence_number_for_group())
        except RuntimeError:
            if not self._by_group:
                return 0
            self._by_group = False  # several backends, each with its own count
            return self.begun()

    def rebuild(
        self,
        generation: int,
        host: str,
        port: int,
        built_at: int,
        limit: float,
        device: torch.device,
    ) -> None:
        """Leave the current group and make that of `generation`; all ranks call this. Raises what
        the collective library raises, within about `limit` seconds, and at once on an interruption
        newer than `built_at`."""
        drop_group()
        # torch numbers its groups and uses the number in the store's keys; a rank whose last try
        # was cut has counted further than the others, and they would wait under different keys
        c10d._world.group_count = 0
        sockets.begin(built_at)
        try:
            store = dist.TCPStore(
                host,
                port,
                is_master=False,
                wait_for_workers=False,
                timeout=timedelta(seconds=limit),
            )
            dist.init_process_group(
                self.backend,
                store=dist.PrefixStore(f"taskd/{generation}", store),
                rank=self.rank,
                world_size=self.world_size,
                timeout=self.timeout,
            )
            # gloo connects lazily under TORCH_GLOO_LAZY_INIT; one tiny collective makes every
            # connection before the list is fixed
            dist.all_reduce(torch.zeros(1, device=device))
        finally:
            sockets.end()
        self.generation = generation

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Replace the default group by one of torch's fake backend inside the context, as in a
        replacement's set-up: its collectives reach no rank and wait for none. The real group comes
        back untouched."""
        from torch.testing._internal.distributed.fake_pg import FakeStore

        group, count = dist.group.WORLD, c10d._world.group_count
        c10d._update_default_pg(None)
        try:
            dist.init_process_group(
                "fake", store=FakeStore(), rank=self.rank, world_size=self.world_size
            )
            fake = dist.group.WORLD
        except BaseException:
            c10d._update_default_pg(group)
            raise
        try:
            yield
        finally:
            c10d._update_default_pg(group)
            dist.destroy_process_group(fake)
            c10d._world.group_count = count


def drop_group() -> None:
    """Drop the default group without waiting for its destructor."""
    if not dist.is_initialized():
        return
    # the destructor waits for peers of connected pairs, but not of shut ones
    sockets.cut()
    group: Any = dist.group.WORLD
    keep: list[Any] = [group, *(group._get_backend(device) for device in group._device_types)]
    dist.destroy_process_group()
    let_go(keep)


def let_go(groups: list[Any]) -> None:
    """Drop the last references to unused groups in a thread. A group's destructor waits for its
    collectives, one of which may never end; if something else (DDP's reducer) held the last
    reference, it would wait while holding the GIL."""
    threading.Thread(target=groups.clear, name="taskd-drop-group", daemon=True).start()


def _timeout(group: Any) -> timedelta:
    try:
        options = group._get_backend(group._device_types[0]).options
        return options._timeout  # type: ignore[no-any-return]
    except (RuntimeError, AttributeError, IndexError):
        return c10d.default_pg_timeout

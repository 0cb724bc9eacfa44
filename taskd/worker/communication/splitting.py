"""`dist.split_group` of a group that has new backends.

torch divides a group over the store that it was made with. A renewed group's is another job's by
now: a replacement's is that of a stand-in, and where `release_resources()` (group_tables.py) has
taken it with the backends, torch reads a null pointer. Such a group is divided here, over the store
of its generation.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from taskd.worker.communication import methods

_renewed: set[Any] = set()  # the groups of gloo alone that have new backends


def note(handle: Any) -> None:
    """It has new ones."""
    _renewed.intersection_update(c10d._world.pg_map)  # others have been destroyed
    _renewed.add(handle)


def install(around: Callable[[], AbstractContextManager[Any]]) -> None:
    """Connections are made inside `around()`. Idempotent."""

    def make(original: Any) -> Any:
        def split_group(
            handle: Any,
            new_ranks: list[int],
            timeout: timedelta | None = None,
            opts: Any = None,
            group_name: str | None = None,
            group_desc: str | None = None,
            **more: Any,
        ) -> Any:
            given = (new_ranks, timeout, opts, group_name, group_desc)
            if handle not in _renewed:
                return original(handle, *given, **more)
            if handle.rank() not in new_ranks:
                return None
            with around():
                return _divided(handle, *given, **more)

        return split_group

    methods.RENEWED.put(dist.ProcessGroup, "split_group", make)


def _divided(
    handle: Any,
    new_ranks: list[int],
    timeout: timedelta | None,
    opts: Any,
    group_name: str | None,
    group_desc: str | None,
    device_types: list[torch.device] | None = None,
) -> Any:
    store = c10d._world.pg_map[handle][1]
    ranks = sorted(new_ranks)
    prefix = dist.PrefixStore(f"{group_name}/", store)
    whole = handle._get_backend(torch.device("cpu"))
    options = opts
    if options is None:
        gloo: Any = dist.ProcessGroupGloo
        options = gloo._Options()
        options._devices = whole.options._devices
        options._timeout = timeout if timeout is not None else whole.options._timeout
    mine = ranks.index(handle.rank())
    child: Any = dist.ProcessGroup(prefix, mine, len(ranks))
    backend = dist.ProcessGroupGloo(prefix, mine, len(ranks), options)
    kind = dist.ProcessGroup.BackendType.GLOO
    child._set_default_backend(kind)
    wanted = {device.type for device in device_types or handle._device_types}
    for device in handle._device_types:
        if device.type in wanted:
            child._register_backend(device, kind, backend)
    child._set_group_name(group_name)
    child._set_group_desc(group_desc or "")
    return child

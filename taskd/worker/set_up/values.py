"""The properties of a set-up call that are compared and kept: its group, its root or peer, the
tensors that it fills."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from taskd.worker.discovery import frames
from taskd.worker.set_up.results import NotTheSame, Result


class Over(dist.Work):
    """The work of a call whose result is there."""

    def __init__(self, outputs: list[torch.Tensor], source: int) -> None:
        super().__init__()
        self._outputs, self._source = outputs, source

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        return True

    def synchronize(self) -> None: ...

    def is_completed(self) -> bool:
        return True

    is_success = is_completed

    def exception(self) -> None:
        return None

    def result(self) -> list[torch.Tensor]:
        return self._outputs

    def _source_rank(self) -> int:
        return self._source

    source_rank = _source_rank

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
        future.set_result(self._outputs)
        return future


def channel_of(handle: Any) -> str:
    return group_name(c10d._world.pg_names.get(handle, "?"))


def group_name(name: Any) -> str:
    if isinstance(name, dist.ProcessGroup):
        return channel_of(name)
    return f"process group {name}"


def detail(name: str, args: Any) -> str:
    """The root or the peer of a call."""
    for option in args[1:]:
        if (root := getattr(option, "rootRank", None)) is not None:
            return f"root {root}"
    if name in ("send", "recv") and len(args) > 1:
        return f"rank {args[1]} of the group"
    return ""


def tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from tensors(inner)


def shape(tensor: torch.Tensor) -> tuple[str, tuple[int, ...]]:
    return str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)


def is_plain(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and type(tensor) in (torch.Tensor, torch.nn.Parameter)


def contents(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes()


def fill(tensor: torch.Tensor, data: bytes) -> None:
    if data:
        found = torch.frombuffer(bytearray(data), dtype=tensor.dtype).reshape(tensor.shape)
        with torch.no_grad():
            tensor.copy_(found)


def check_object(wanted: Result, known: Result, outputs: list[torch.Tensor], rank: int) -> None:
    """Raises NotTheSame if this rank is the root of broadcast_object_list() and has made another
    object than its previous process, whose object the other ranks have: torch leaves a root its
    own."""
    if known.data is None or wanted.call != "broadcast" or wanted.detail != f"root {rank}":
        return
    objects = any(frame.f_code.co_name == "broadcast_object_list" for frame in frames.stack())
    if objects and known.data != [contents(t) for t in outputs]:
        raise NotTheSame(
            "broadcast_object_list() between two passes: this rank's object is another one than"
            " that of its previous process, which the other ranks have. Make such calls inside an"
            " attempt, where they are repeated"
        )

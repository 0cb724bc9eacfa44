"""taskd's own gathers over the default group, also while ranks are away; and on which device its
collectives are."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from taskd.cython_api import slot


def backends() -> dict[str, str]:
    """Device type -> backend, of the default group, as the script asked for it."""
    return dict(pair.split(":") for pair in dist.get_backend_config().split(","))


def device() -> torch.device:
    """Where tensors of taskd's own collectives are: on the CPU if the default group serves it, else
    on the device that it serves."""
    served = backends()
    if "cpu" in served:
        return torch.device("cpu")
    return _place if _place.type in served else torch.device(next(iter(served)))


def sends_from(place: torch.device) -> torch.device:
    """Where tensors are that are sent between ranks, for memory on `place`: gloo's send and recv
    know no other memory than the CPU's."""
    if place.type != "cpu" and backends().get(place.type, "gloo") != "gloo":
        return place
    return device()


_built_at = 0
_place = torch.device("cpu")


def built(interruption: int, place: torch.device) -> None:
    """The present communicators belong to this interruption. `place`: this rank's device."""
    global _built_at, _place
    _built_at, _place = interruption, place


def interrupted() -> bool:
    """Whether an interruption is newer than the present communicators."""
    return slot.interruption() > _built_at


def whole(place: torch.device) -> None:
    """Raise RuntimeError if collectives on `place` that have ended may have been cut: on a device
    an abort lets one end with anything in its output."""
    if place.type != "cpu" and interrupted():
        raise RuntimeError("an interruption may have cut a collective of taskd")


def gather(values: torch.Tensor, present: Sequence[int]) -> dict[int, torch.Tensor]:
    """The `values` of each rank of `present`, which are all that are not away, by rank, where
    `values` is. A collective, on a device that the default group serves."""
    there = device()
    if there.type != values.device.type:
        theirs = gather(values.to(there), present)
        found = {rank: row.to(values.device) for rank, row in theirs.items()}
        whole(there)
        return found
    size = dist.get_world_size()
    if len(present) == size:
        rows = [torch.empty_like(values) for _ in present]
        dist.all_gather(rows, values)
        return dict(zip(present, rows, strict=True))
    # with fewer ranks only reductions work (shrunk.py); what is summed here are whole numbers
    table = values.new_zeros((len(present), *values.shape))
    table[present.index(dist.get_rank())] = values
    dist.all_reduce(table)
    return dict(zip(present, table, strict=True))

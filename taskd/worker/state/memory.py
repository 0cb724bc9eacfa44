"""A rank's tensors as bytes: gathered, restored, compared, checksummed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from taskd.cython_api import allocations, memory
from taskd.records.sealed import Buffer


def gather(rows: list[torch.Tensor]) -> bytes:
    """The memory of tensors, end to end; from each device it comes in one copy."""
    devices = {row.device for row in rows}
    if len(devices) <= 1:
        return torch.cat(rows).cpu().numpy().tobytes() if rows else b""
    sizes = [row.numel() for row in rows]
    host = torch.empty(sum(sizes), dtype=torch.uint8)
    places = list(zip(host.split(sizes), rows, strict=True))
    for device in devices:
        here = [(to, row) for to, row in places if row.device == device]
        packed = torch.cat([row for _, row in here]).cpu()
        parts = list(packed.split([to.numel() for to, _ in here]))
        torch._foreach_copy_([to for to, _ in here], parts)
    return host.numpy().tobytes()


def scatter(data: Buffer, rows: list[torch.Tensor]) -> None:
    """Restore `gather`'s bytes. Raises RuntimeError if their number does not match `rows`."""
    if sum(r.numel() for r in rows) != len(data):
        raise RuntimeError(
            f"the record has {len(data)} bytes of private tensors, this process has"
            f" {sum(r.numel() for r in rows)}"
        )
    if rows:
        torch._foreach_copy_(rows, list(_bytes(memoryview(data)).split([r.numel() for r in rows])))


def _bytes(view: memoryview) -> torch.Tensor:
    return torch.frombuffer(bytearray(view) if view.readonly else view, dtype=torch.uint8)


@contextmanager
def scratch() -> Iterator[None]:
    """Mark allocations as scratch: every repair makes them again, so losing a page of one is
    harmless."""
    allocations.scratch(True)
    try:
        yield
    finally:
        allocations.scratch(False)


def checksum(rows: list[torch.Tensor]) -> str:
    value = 0
    for row in rows:
        host = row if row.device.type == "cpu" else row.cpu()
        value = memory.checksum(host.data_ptr(), host.numel(), value)
    return f"{value:016x}"

"""A rank's tensors as bytes: gathered, restored, compared, checksummed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from taskd.cython_api import allocations, batch, memory
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
    """Of bytes, end to end; those of a device are not brought to the host."""
    if all(row.device.type == "cpu" for row in rows):
        value = 0
        for row in rows:
            value = memory.checksum(row.data_ptr(), row.numel(), value)
    else:
        found = checksums(rows)
        value = memory.checksum(found.data_ptr(), found.nbytes, 0)
    return f"{value:016x}"


def checksums(rows: list[torch.Tensor]) -> torch.Tensor:
    """Of each row, as int64 on the CPU: XXH64 of those there; of those of a device a sum of their
    words, each times an odd number of its place. Any one changed word changes it, and no order of
    additions does."""
    found = torch.empty(len(rows), dtype=torch.int64)
    for device in {row.device for row in rows}:
        numbers = [number for number, row in enumerate(rows) if row.device == device]
        here = [rows[number] for number in numbers]
        if device.type == "cpu":
            # int64 cannot hold an unsigned 64-bit checksum
            values = torch.tensor([value - (1 << 63) for value in batch.checksums(here)])
        else:
            values = sums(here).cpu()
        found[numbers] = values
    return found


def sums(rows: list[torch.Tensor]) -> torch.Tensor:
    """The sums of rows of one device, queued there; those of the CPU are left out."""
    here = [row for row in rows if row.device.type != "cpu"]
    if not here:
        return torch.zeros(0, dtype=torch.int64)
    odd = _odd(max(row.numel() for row in here), here[0].device)
    return torch.stack([_sum(row, odd) for row in here])


CHUNK = 1 << 21  # words of 8 bytes that are multiplied at once: 16 MiB, and as much for the result


def _odd(size: int, device: torch.device) -> torch.Tensor:
    """An odd number for each word of a chunk; int64 arithmetic is modulo 2**64."""
    words = torch.arange(1, min(size // 8 + 1, CHUNK) + 1, device=device) * -0x61C8864680B583EB
    return (words ^ (words >> 32)) * -0x4498517A7B3558C5 | 1


def _sum(row: torch.Tensor, odd: torch.Tensor) -> torch.Tensor:
    total = torch.zeros((), dtype=torch.int64, device=row.device)
    for begin in range(0, row.numel(), 8 * CHUNK):
        chunk = row[begin : begin + 8 * CHUNK]
        if rest := -chunk.numel() % 8:
            chunk = torch.cat((chunk, chunk.new_zeros(rest)))
        elif chunk.storage_offset() % 8:
            chunk = chunk.clone()
        words = chunk.view(torch.int64)
        total = total * -0x61C8864680B583EB + (words * odd[: len(words)]).sum()
    return total

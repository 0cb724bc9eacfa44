"""Sends replicated state from one rank to another, in pieces, over the default process group."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist

from taskd.cython_api import damage
from taskd.worker.communication.counts import own
from taskd.worker.state import gathering

CHUNK = 8 << 20  # bytes; 4-16 MiB pieces are fastest over gloo (docs/design.md)


@own()
def give(rows: list[torch.Tensor], destination: int, device: torch.device) -> None:
    """Send `rows`, which are on `device`, to rank `destination`."""
    damaged, place = damage.damaged(), gathering.sends_from(device)
    for pieces in _chunks(rows):
        # optimizers keep some of their state on the CPU, whatever device the rest is on
        dist.send(torch.cat([piece.to(place) for piece in pieces]), destination)
    # a page found lost only while being read arrives as zeros: without this flag the receiver would
    # take them for state and be a source in the next round
    lost = torch.tensor([damage.damaged() != damaged], dtype=torch.uint8, device=place)
    dist.send(lost, destination)


@own()
def receive(rows: list[torch.Tensor], source: int, device: torch.device) -> None:
    """Receive into `rows` what rank `source` sends. Raises RuntimeError if it is incomplete."""
    place = gathering.sends_from(device)
    for pieces in _chunks(rows):
        size = sum(p.numel() for p in pieces)
        buffer = torch.empty(size, dtype=torch.uint8, device=place)
        dist.recv(buffer, source)
        torch._foreach_copy_(pieces, list(buffer.split([p.numel() for p in pieces])))
    lost = torch.ones(1, dtype=torch.uint8, device=place)
    dist.recv(lost, source)
    if lost:
        raise RuntimeError(f"rank {source} lost a memory page while it sent its state")


def _chunks(rows: list[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Yield views of the rows, in order, in lists of at most CHUNK bytes."""
    pieces: list[torch.Tensor] = []
    room = CHUNK
    for row in rows:
        at = 0
        while at < row.numel():
            take = min(room, row.numel() - at)
            pieces.append(row[at : at + take])
            at, room = at + take, room - take
            if room == 0:
                yield pieces
                pieces, room = [], CHUNK
    if pieces:
        yield pieces

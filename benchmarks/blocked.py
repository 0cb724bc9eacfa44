"""A rank dies while its peers wait for it in an all_reduce: measures when each of them leaves. Run
by benchmarks/recovery.py.

Step by step, every rank is the victim once for each tensor size. The victim records that it is
about to enter the collective, and is killed before it does. A survivor records the moment at which
the collective raised in its attempt.
"""

from __future__ import annotations

import argparse
import mmap
import os
import struct
import time
from pathlib import Path

SIZES = (4, 4 << 20)  # bytes: one packet, and a ring that is busy for milliseconds
# of one (step, rank): moment of entering, moment of leaving by an exception, pid
CELL = struct.Struct("<qqq")


class Board:
    """One cell per step and rank, and per step whether the victim was killed, in a file that all
    processes map."""

    def __init__(self, directory: str | Path, world: int, steps: int) -> None:
        self.world = world
        size = steps * (world + 1) * CELL.size
        fd = os.open(Path(directory) / "board", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(fd, size)
            self._map = mmap.mmap(fd, size)
        finally:
            os.close(fd)

    def _offset(self, step: int, rank: int) -> int:
        return (step * (self.world + 1) + rank) * CELL.size

    def enter(self, step: int, rank: int) -> None:
        if not self.read(step, rank)[0]:
            CELL.pack_into(self._map, self._offset(step, rank), time.monotonic_ns(), 0, os.getpid())

    def leave(self, step: int, rank: int) -> None:
        entered, left, pid = self.read(step, rank)
        if not left:
            CELL.pack_into(self._map, self._offset(step, rank), entered, time.monotonic_ns(), pid)

    def read(self, step: int, rank: int) -> tuple[int, int, int]:
        entered, left, pid = CELL.unpack_from(self._map, self._offset(step, rank))
        return entered, left, pid

    def kill(self, step: int) -> None:
        CELL.pack_into(self._map, self._offset(step, self.world), 1, 0, 0)

    def killed(self, step: int) -> bool:
        return self.read(step, self.world)[0] != 0


def victim(step: int, world: int) -> int:
    return step % world


def size(step: int, world: int) -> int:
    return SIZES[step // world % len(SIZES)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--steps", type=int, required=True)
    args = parser.parse_args()

    import torch
    import torch.distributed as dist

    import taskd

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    board = Board(args.out, world, args.steps)
    torch.manual_seed(1)
    job = taskd.protect(model=torch.nn.Linear(1, 1))
    tensors = {n: torch.ones(n // 4) for n in SIZES}
    for attempt in job.steps(args.steps):
        with attempt as step:
            dist.all_reduce(torch.zeros(1))  # all enter at about the same time
            fresh = not board.killed(step)
            if fresh:
                board.enter(step, rank)
                while rank == victim(step, world):
                    time.sleep(0.01)
            try:
                dist.all_reduce(tensors[size(step, world)])
            except Exception:
                board.leave(step, rank)
                raise
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

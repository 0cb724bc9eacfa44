"""The benchmarks' training: an MLP whose step takes ~20 ms with 4 ranks on 2 cores. Also the record
that its ranks keep.

    taskd run --nproc_per_node 4 benchmarks/toy.py --out DIR
    torchrun  --nproc_per_node 4 benchmarks/toy.py --out DIR --checkpoint FILE

The checkpoint is saved every 10th step.

DIR/steps.R holds the steps that rank R committed, as (step, time.monotonic_ns, pid, CPU time): the
clock is the same in all processes of a machine, and a mapped file survives a kill. DIR/raised.R
holds, in the same form, when a step raised an exception. DIR/orders carries the benchmark's orders
to ranks.
"""

from __future__ import annotations

import argparse
import bisect
import mmap
import os
import struct
import time
from pathlib import Path
from typing import Any

WIDTH, DEPTH, BATCH = 256, 4, 352
KEEP_EVERY = 10  # steps between two checkpoints
CAPACITY = 200_000  # committed steps of one rank; the file is sparse
# step, monotonic ns (0: not written), pid, CPU time of the process in ns
RECORD = struct.Struct("<qqqq")
ORDER = struct.Struct("<q")  # per rank: GiB of ballast, or
RAISE = -1  # a device fault in the next step


class DeviceFault(Exception):
    """Stands for an error of a device's library."""


class Steps:
    """The committed steps of one rank, appended to by the rank and read by the benchmark while it
    runs."""

    def __init__(self, directory: str | Path, rank: int, name: str = "steps") -> None:
        path = Path(directory) / f"{name}.{rank}"
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(fd, CAPACITY * RECORD.size)
            self._map = mmap.mmap(fd, CAPACITY * RECORD.size)
        finally:
            os.close(fd)
        self._at = 0
        self._catch_up()

    def _catch_up(self) -> None:
        while RECORD.unpack_from(self._map, self._at * RECORD.size)[1]:
            self._at += 1

    def append(self, step: int, pid: int) -> None:
        RECORD.pack_into(
            self._map,
            self._at * RECORD.size,
            step,
            time.monotonic_ns(),
            pid,
            time.process_time_ns(),
        )
        self._at += 1

    def __len__(self) -> int:
        self._catch_up()
        return self._at

    def read(self, first: int = 0) -> list[tuple[int, int, int, int]]:
        """All records from `first` on."""
        return [RECORD.unpack_from(self._map, i * RECORD.size) for i in range(first, len(self))]

    def after(self, at: int) -> int:
        """The index of the first record later than `at`."""
        return bisect.bisect_right(
            range(len(self)), at, key=lambda i: RECORD.unpack_from(self._map, i * RECORD.size)[1]
        )

    def last(self) -> tuple[int, int, int, int] | None:
        count = len(self)
        return RECORD.unpack_from(self._map, (count - 1) * RECORD.size) if count else None


class Orders:
    """One word per rank, written by the benchmark."""

    def __init__(self, directory: str | Path) -> None:
        fd = os.open(Path(directory) / "orders", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(fd, mmap.PAGESIZE)
            self._map = mmap.mmap(fd, mmap.PAGESIZE)
        finally:
            os.close(fd)

    def put(self, rank: int, value: int) -> None:
        ORDER.pack_into(self._map, rank * ORDER.size, value)

    def get(self, rank: int) -> int:
        value: int = ORDER.unpack_from(self._map, rank * ORDER.size)[0]
        return value


def build() -> tuple[Any, Any]:
    """The model and its optimizer."""
    import torch

    torch.manual_seed(1)
    model = torch.nn.Sequential(
        *[layer for _ in range(DEPTH) for layer in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())]
    )
    return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--steps", type=int, default=CAPACITY // 2)
    parser.add_argument("--checkpoint", help="save to this file every 10 steps and start from it")
    parser.add_argument(
        "--every-other",
        type=int,
        help="after this many steps, do as many outside any attempt, recorded as -1",
    )
    args = parser.parse_args()

    import torch
    import torch.distributed as dist

    import taskd
    from taskd import devices

    torch.set_num_threads(1)
    devices.register(
        devices.Pattern("a benchmark's device", devices.FaultType.OTHER, types=(DeviceFault,))
    )
    dist.init_process_group("gloo")
    rank, pid = dist.get_rank(), os.getpid()
    model, optimizer = build()
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01, momentum=0.9)
    batches = torch.randn(8, BATCH, WIDTH, generator=torch.Generator().manual_seed(rank))
    job = taskd.protect(model=ddp, optimizer=optimizer)
    first = 0  # the step that the checkpoint is at
    if args.checkpoint and os.path.exists(args.checkpoint):
        saved = torch.load(args.checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"]
    steps, raised, orders, ballast = (
        Steps(args.out, rank),
        Steps(args.out, rank, "raised"),
        Orders(args.out),
        None,
    )

    def train(step: int) -> None:
        optimizer.zero_grad()
        loss = ddp(batches[step % len(batches)]).square().mean()
        # the others are in their forward, or wait for this rank in their backward
        if orders.get(rank) == RAISE:
            orders.put(rank, 0)
            raise DeviceFault
        loss.backward()
        optimizer.step()

    for attempt in job.steps(args.steps - first):
        with attempt as number:
            step = first + number
            try:
                train(step)
            except Exception:
                raised.append(step, pid)
                raise
        if not attempt.done:
            continue
        steps.append(step, pid)
        if args.checkpoint and rank == 0 and (step + 1) % KEEP_EVERY == 0:
            state = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "step": step + 1,
            }
            torch.save(state, args.checkpoint + ".new")
            # a kill in the middle leaves the previous one
            os.replace(args.checkpoint + ".new", args.checkpoint)
        if args.every_other and (step + 1) % args.every_other == 0:
            for extra in range(args.every_other):
                train(extra)
                steps.append(-1, pid)
        if ballast is None and (size := orders.get(rank)) > 0:
            ballast = torch.ones(
                size << 30, dtype=torch.uint8
            )  # touches every page; the other ranks wait for this one meanwhile
            orders.put(rank, 0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

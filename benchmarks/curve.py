"""The training of the soaks: all that makes bit-for-bit equality hard. Run by benchmarks/soak.py
and soak_nodes.py, also under plain torchrun.

Batch norm, dropout, momentum, a scheduler, an all_reduce in the tail, and random numbers of torch,
python and numpy in each step; passes of PASS steps. DIR/orders has the step before which it ends.
DIR/steps.R holds what rank R committed, DIR/losses.R its own and the mean loss of each step,
written inside the attempt: the final values are those of the committed attempt. DIR/final.R is a
hash of all trained state.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import mmap
import os
import random
import struct
import time
from pathlib import Path
from typing import Any

import toy

PASS = 100  # steps
FEATURES, WIDTH, CLASSES, BATCH = 64, 2048, 10, 32
CAPACITY = 4_000_000  # steps; the file is sparse
PAIR = struct.Struct("<dd")


class Losses:
    """The losses of one rank, by step; (0, 0) where there is none."""

    def __init__(self, directory: str | Path, rank: int) -> None:
        fd = os.open(Path(directory) / f"losses.{rank}", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(fd, CAPACITY * PAIR.size)
            self._map = mmap.mmap(fd, CAPACITY * PAIR.size)
        finally:
            os.close(fd)

    def put(self, step: int, own: float, mean: float) -> None:
        PAIR.pack_into(self._map, step * PAIR.size, own, mean)

    def read(self, steps: int) -> list[tuple[float, float]]:
        return [PAIR.unpack_from(self._map, step * PAIR.size) for step in range(steps)]


def build() -> Any:
    """Build the model. Batch norm is wider than a page, so that each kind of tensor has whole pages
    to lose."""
    import torch

    torch.manual_seed(7)
    return torch.nn.Sequential(
        torch.nn.Linear(FEATURES, WIDTH),
        torch.nn.BatchNorm1d(WIDTH),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.1),
        torch.nn.Linear(WIDTH, FEATURES),
        torch.nn.Tanh(),
        torch.nn.Linear(FEATURES, CLASSES),
    )


def finish(directory: Path, rank: int, final: str) -> None:
    """Write the rank's last state, whole or not at all: a soak ends the job as soon as it is
    there."""
    new = directory / f".final.{rank}"
    new.write_text(final)
    new.replace(directory / f"final.{rank}")


def fingerprint(*objects: Any) -> str:
    """Hash every byte of their state: parameters, buffers, momentum, the scheduler's position."""
    import torch

    digest = hashlib.sha256()

    def take(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            digest.update(value.numpy().tobytes())
        elif isinstance(value, dict):
            for key in sorted(value, key=str):
                digest.update(str(key).encode())
                take(value[key])
        elif isinstance(value, (list, tuple)):
            for item in value:
                take(item)
        else:
            digest.update(repr(value).encode())

    for item in objects:
        take(item.state_dict())
    return digest.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument(
        "--nap",
        type=float,
        default=0.0,
        help=(
            "seconds that a rank is idle per step, on average, at three places; until DIR/orders"
            " names the end"
        ),
    )
    args = parser.parse_args()

    import numpy
    import torch
    import torch.distributed as dist

    import taskd

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world, pid = dist.get_rank(), dist.get_world_size(), os.getpid()
    model = torch.nn.parallel.DistributedDataParallel(build(), bucket_cap_mb=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100, 0.99)
    for seed in (torch.manual_seed, random.seed, numpy.random.seed):
        seed(100 + rank)
    steps, losses, orders = toy.Steps(args.out, rank), Losses(args.out, rank), toy.Orders(args.out)
    job = taskd.protect(model=model, optimizer=optimizer, scheduler=scheduler)
    dice = random.Random(time.monotonic_ns())  # separate from the training's generators

    def nap() -> None:
        if args.nap and not orders.get(world):
            time.sleep(dice.uniform(0.0, args.nap * 2 / 3))

    for end in itertools.count(PASS, PASS):
        for attempt in job.steps(end):
            with attempt as step:
                nap()
                x = torch.randn(BATCH, FEATURES) * random.uniform(0.5, 1.5) + float(
                    numpy.random.normal()
                )
                loss = torch.nn.functional.cross_entropy(model(x), torch.randint(CLASSES, (BATCH,)))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                scheduler.step()
                nap()
                mean = loss.detach().clone()
                dist.all_reduce(mean)
                losses.put(step, loss.item(), mean.item())
            if attempt.done:
                steps.append(step, pid)
            nap()
        # written at least a whole pass earlier, so that all ranks see it
        if end == orders.get(world):
            break
    finish(Path(args.out), rank, fingerprint(model, optimizer, scheduler))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

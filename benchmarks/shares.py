"""The training of benchmarks/elastic.py. A share of a step takes --share ms: a sleep in place of an
accelerator's work, since the machine has too few cores for the hosts that it plays.

    taskd run … benchmarks/shares.py --out DIR
    torchrun  … benchmarks/shares.py --out DIR --checkpoint FILE --replicas 4

With a checkpoint, every 10th step, it starts anew with the ranks that are left and spreads the
shares of --replicas replicas over them.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from toy import CAPACITY, KEEP_EVERY, Steps, build

import taskd

BATCH = 8


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--share", type=float, default=50.0)
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--replicas", type=int, default=4)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    net, optimizer = build()
    model = torch.nn.parallel.DistributedDataParallel(net)

    def done(step: int) -> None:
        """Write it down behind what is there: a rank that was away has written down less than its
        stand-in has counted."""
        Steps(args.out, rank).append(step, os.getpid())

    def share(step: int, data_rank: int) -> None:
        generator = torch.Generator().manual_seed(step * 1000 + data_rank)
        x = torch.randn(BATCH, net[0].in_features, generator=generator)
        model(x).square().mean().backward()
        time.sleep(args.share / 1e3)

    if args.checkpoint is None:
        job = taskd.protect(model=model, optimizer=optimizer)
        for attempt in job.steps(CAPACITY):
            with attempt as step:
                optimizer.zero_grad()
                for data_rank in job.shares(step):
                    share(step, data_rank)
                optimizer.step()
            if attempt.done:
                done(step)
        return
    first = 0
    if args.checkpoint.exists():
        kept = torch.load(args.checkpoint)
        first = kept["step"]
        net.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
    for step in range(first, CAPACITY):
        optimizer.zero_grad()
        mine = range(rank, args.replicas, world)
        for data_rank in mine:
            model.require_backward_grad_sync = data_rank == mine[-1]
            share(step, data_rank)
        optimizer.step()
        done(step)
        if rank == 0 and (step + 1) % KEEP_EVERY == 0:
            state = {"step": step + 1, "model": net.state_dict()}
            part = args.checkpoint.with_suffix(".part")
            torch.save(state | {"optimizer": optimizer.state_dict()}, part)
            part.rename(args.checkpoint)


if __name__ == "__main__":
    main()

"""The training of `soak.py --script accumulating.py`: as much state as a usual script has, spread
over attempts.

One attempt per micro-batch, an update at each fourth, gradients waiting in between under no_sync;
batch norm, dropout, bfloat16 autocast with a scaler, two optimizers (one updates half as often), a
scheduler, an average of the weights, a loader with a worker process whose order comes from a
generator of the script, an all_reduce in the tail. Records and orders as in curve.py.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import random
import time
from pathlib import Path

import curve
import toy

PERIOD = 4  # attempts per update


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--nap", type=float, default=0.0, help="as in curve.py")
    args = parser.parse_args()

    import torch
    import torch.distributed as dist
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
    from torch.utils.data import DataLoader, Dataset, RandomSampler

    import taskd

    class Noisy(Dataset):
        """Data that is augmented in the loader's worker."""

        def __len__(self) -> int:
            return curve.PASS * curve.BATCH

        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            return torch.full((curve.FEATURES,), index % 97 / 97.0) + 0.3 * torch.randn(
                curve.FEATURES
            ), index % curve.CLASSES

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world, pid = dist.get_rank(), dist.get_world_size(), os.getpid()
    net = curve.build()
    model = torch.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=1)
    body = torch.optim.AdamW([p for layer in net[:4] for p in layer.parameters()], lr=0.002)
    head = torch.optim.SGD(
        [p for layer in net[4:] for p in layer.parameters()], lr=0.02, momentum=0.9
    )
    scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(body, 50)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=20)
    average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.95))
    torch.manual_seed(100 + rank)
    data = Noisy()
    order = RandomSampler(data, generator=torch.Generator().manual_seed(200 + rank))
    loader = DataLoader(data, batch_size=curve.BATCH, sampler=order, num_workers=1)
    steps, losses, orders = (
        toy.Steps(args.out, rank),
        curve.Losses(args.out, rank),
        toy.Orders(args.out),
    )
    job = taskd.protect(
        model=model, optimizers=[body, head], scheduler=scheduler, scaler=scaler, average=average
    )
    dice = random.Random(time.monotonic_ns())  # separate from the training's generators

    def nap() -> None:
        if args.nap and not orders.get(world):
            time.sleep(dice.uniform(0.0, args.nap * 2 / 3))

    for end in itertools.count(curve.PASS, curve.PASS):
        for attempt in job.batches(loader):
            with attempt as (step, (x, y)):
                nap()
                last = step % PERIOD == PERIOD - 1
                both = step % (2 * PERIOD) == 2 * PERIOD - 1
                with contextlib.nullcontext() if last else model.no_sync():
                    with torch.autocast("cpu", torch.bfloat16):
                        out = model(x)
                    loss = torch.nn.functional.cross_entropy(out.float(), y) / PERIOD
                    scaler.scale(loss).backward()
                if last:
                    for optimizer in (body, head) if both else (body,):
                        scaler.step(optimizer)
                        optimizer.zero_grad()
                    scaler.update()
                    scheduler.step()
                    average.update_parameters(net)
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
    trained = curve.fingerprint(net, body, head, scheduler, scaler, average)
    curve.finish(Path(args.out), rank, trained)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

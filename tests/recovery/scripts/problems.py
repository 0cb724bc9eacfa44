"""A loop with a problem, as people have them. Usage: problems.py OUT STEPS PROBLEM"""

import contextlib
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

import taskd

steps, problem = int(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo")
rank = dist.get_rank()
if problem == "config" and rank == 0:
    raise ValueError("no such configuration")
torch.manual_seed(0)
model = DDP(torch.nn.Linear(8, 8))
optimizer = torch.optim.AdamW(model.parameters())
torch.manual_seed(rank)


class Of:
    """An object that no record can hold."""


def hold(optimizer, *_):
    """In each rank after the first update, or in one of them later."""
    calls[0] += 1
    if problem == "object" or (rank == 1 and calls[0] > 4):
        optimizer.state[model.module.bias]["of"] = Of()


calls = [0]
if problem in ("object", "one", "called"):
    optimizer.register_step_post_hook(hold)


class Samples(torch.utils.data.Dataset):
    def __len__(self):
        less = problem in ("uneven", "join") and rank == 1
        return 8 * (steps - less)

    def __getitem__(self, number):
        first = not taskd.replacement
        if problem == "loader" and rank == 1 and number == 80 and first:
            os.kill(os.getpid(), signal.SIGSEGV)
        return [float(number)] * 8


loader = torch.utils.data.DataLoader(
    Samples(), batch_size=8, num_workers=problem == "loader", collate_fn=list
)
pids = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
dist.all_gather(pids, torch.tensor([os.getpid()]))
job = taskd.protect(model=model, optimizer=optimizer)


def train(step, batch):
    if problem == "slow" and rank == 1:
        time.sleep(0.06)
    loss = model(torch.tensor(batch) + torch.randn(8, 8)).square().mean()
    loss.backward()
    if problem == "nan" and step == 10:
        job.check(loss * float("nan"))
    if problem == "raise" and step == 10 and rank == 1:
        raise ValueError("bad sample 17")
    if problem == "deadlock" and step == 10 and rank == 1:
        dist.barrier()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.01)
    return loss


def say(step, loss):
    print(f"rank {rank} step {step} loss {loss.item()!r}\n", end="", flush=True)


if problem == "called":
    data = job.iterate(loader)
    while job.step < steps:
        step = job.step
        say(step, job.call(lambda step: train(step, next(data)), step))
    job.finish()
else:
    with model.join() if problem == "join" else contextlib.nullcontext():
        for attempt in job.batches(iter(loader) if problem == "uneven" else loader):
            if problem == "break" and attempt.step == 10 and rank == 1:
                break
            with attempt as (step, batch):
                loss = train(step, batch)
            say(step, loss)
if problem == "after" and rank == 1:
    with contextlib.suppress(ProcessLookupError):
        while True:  # until rank 0 has ended
            os.kill(int(pids[0]), 0)
            time.sleep(0.01)
    raise ValueError("no room for the results")
if problem != "after":
    dist.barrier()
    dist.destroy_process_group()

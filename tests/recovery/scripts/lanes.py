"""Replicas of two ranks each, with numbers that are exact in any order of additions: a job
whose replicas leave and come back is equal to an undisturbed one, bit for bit.

lanes.py OUT hsdp|tp STEPS [alone]

Inputs are small multiples of 3, a gradient is one of them with a sign that depends on the
parameters, and these are multiples of 1/1024. With `alone`: without taskd.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel as DDP

import taskd

sys.path.insert(0, str(Path(__file__).parent))
import record

WIDTH, BATCH = 8, 4
NAP = 0.1  # seconds that a step of a protected run takes longer, until OUT/hurry is there

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
out, kind, steps, alone = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), len(sys.argv) > 4

names = ("replicate", "within")
mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=names)
lane = mesh["within"].get_group()


class Sum(torch.autograd.Function):
    """Of the ranks of a lane, as tensor parallelism has it."""

    @staticmethod
    def forward(_, x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(total := x.clone(), group=lane)
        return total

    @staticmethod
    def backward(_, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


torch.manual_seed(3 + (rank % 2 if kind == "tp" else 0))
net = torch.nn.Linear(WIDTH, WIDTH, bias=False).double()
with torch.no_grad():
    net.weight.copy_(torch.randint(-1024, 1024, (WIDTH, WIDTH)) / 1024)
if kind == "hsdp":
    model = fully_shard(net, mesh=mesh)
else:
    model = DDP(net, process_group=mesh["replicate"].get_group())
optimizer = torch.optim.SGD(model.parameters(), lr=1 / 256, momentum=1.0)


def samples(step: int, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    # ranks of one tensor parallel group see the same batch
    data = number if kind == "hsdp" else number // 2
    generator = torch.Generator().manual_seed(1000 * step + data)
    x, y = 3 * torch.randint(-4, 5, (2, BATCH, 2 * WIDTH), generator=generator).double()
    half = rank % 2 * WIDTH if kind == "tp" else 0
    return x[:, half : half + WIDTH], y[:, :WIDTH]


def loss_of(step: int, number: int) -> torch.Tensor:
    x, y = samples(step, number)
    found = Sum.apply(model(x)) if kind == "tp" else model(x)
    return (found * torch.sign(found.detach() - y)).sum()


def train(step: int, shares) -> torch.Tensor:
    optimizer.zero_grad()
    loss = torch.zeros((), dtype=torch.float64)
    for number in shares:
        share = loss_of(step, number)
        share.backward()
        loss += share.detach()
    optimizer.step()
    dist.all_reduce(loss)
    return loss


def weight() -> torch.Tensor:
    found = net.weight
    return found.to_local() if isinstance(found, DTensor) else found


with record.Record(out, rank) as log:
    if alone:
        for step in range(steps):
            loss = train(step, [rank])
            log.step(step, loss, weight().sum())
    else:
        job = taskd.protect(model=model, optimizer=optimizer)
        for attempt in job.steps(steps):
            with attempt as step:
                loss = train(step, job.shares(step))
                if not (out / "hurry").exists():
                    time.sleep(NAP)
            if attempt.done:
                log.step(step, loss, weight().sum())
    log.final(torch.nn.ParameterList([weight().clone()]))
if not alone:
    record.leave(job)
os._exit(0)  # without the end of gloo's own, see record.leave

"""The model of tests/mindio/scripts/pretrain.py under taskd.protect.

protected.py MODEL_PARALLEL OUTPUT
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import taskd

WIDTH, BATCH = int(os.environ.get("WIDTH", "64")), 8
RANK, WORLD, MP = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), int(sys.argv[1])
OUTPUT = Path(sys.argv[2])
DP_RANKS = list(range(RANK % MP, WORLD, MP))
MP_RANKS = list(range(RANK - RANK % MP, RANK - RANK % MP + MP))

dist.init_process_group("gloo")
dp = dist.new_group(DP_RANKS, use_local_synchronization=True)
mp = dist.new_group(MP_RANKS, use_local_synchronization=True)


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        gradient = gradient.contiguous()
        dist.all_reduce(gradient, group=mp)
        return gradient


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        dist.all_reduce(x, group=mp)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


torch.manual_seed(RANK % MP)
column = torch.nn.Linear(WIDTH, WIDTH // MP)
row = torch.nn.Linear(WIDTH // MP, WIDTH, bias=False)
model = torch.nn.Sequential(column, row)
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
job = taskd.protect(model=model, optimizer=optimizer)
(OUTPUT / f"pid-{RANK}").write_text(str(os.getpid()))
with open(OUTPUT / f"losses-{RANK}", "a", buffering=1) as losses:
    for attempt in job.steps(10**9):
        with attempt as step:
            if (mark := OUTPUT / f"raise-{RANK}").exists():
                mark.unlink()
                raise ValueError("a defect that shows once")
            x = torch.randn(BATCH, WIDTH)
            hidden = torch.relu(column(_Copy.apply(x)))
            loss = (_Sum.apply(row(hidden)) - x.roll(1, 1)).pow(2).mean()
            loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, group=dp)
            losses.write(f"{step} {float(loss.detach()).hex()} {time.time():.4f}\n")
            optimizer.step()
            optimizer.zero_grad()

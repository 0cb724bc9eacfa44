"""Data-parallel training on PyTorch, here on CPU: a rank that dies is replaced where it was, and
its step is repeated on all ranks. The losses of rank 0 are appended to the file `losses`.

    bash scripts/train_start.sh CODE_DIR OUTPUT_DIR train.py [STEPS]
"""

import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import taskd

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 2000

dist.init_process_group("gloo")
rank = dist.get_rank()
print(f"rank {rank} is process {os.getpid()}", flush=True)

torch.manual_seed(0)  # the same parameters on all ranks
net = torch.nn.Sequential(
    torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 1)
)
model = DistributedDataParallel(net)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 500, 0.5)
torch.manual_seed(1000 + rank)  # data and dropout differ by rank

job = taskd.protect(model=model, optimizer=optimizer, scheduler=scheduler)
for attempt in job.steps(STEPS):
    with attempt as step:
        x = torch.randn(32, 16)
        loss = torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
    if attempt.committed and rank == 0:
        # a step that all ranks repeat has a second line, with the same loss
        with open("losses", "a", encoding="utf-8") as file:
            file.write(f"{step} {loss.item()}\n")

dist.destroy_process_group()
print(f"rank {rank} has trained {STEPS} steps", flush=True)

"""Trains 40 steps under a policy. RAISES: always raises at step 5 on the last rank."""

import os
import time

import torch
import torch.distributed as dist

import taskd

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters())
torch.manual_seed(rank)
job = taskd.protect(model=model, optimizer=optimizer)
for attempt in job.steps(40):
    with attempt as step:
        if "RAISES" in os.environ and step == 5 and rank == 1:
            raise ValueError("a defect of the script")
        loss = model(torch.randn(8, 16)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.02)
    if rank == 0 and attempt.committed:
        print(f"step {step}: {loss.item():.9f}", flush=True)
dist.destroy_process_group()

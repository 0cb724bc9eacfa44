"""splits.py OUT: four ranks divide the world before they train, and again in each of 12 steps.

Plain gloo groups can be divided since torch 2.15.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import taskd

sys.path.insert(0, str(Path(__file__).parent))
import faults
import record

dist.init_process_group("gloo", device_id=torch.device("cpu:0"))
rank = dist.get_rank()
out = Path(sys.argv[1])
fault = faults.Injector(out, rank)
halves = [[0, 1], [2, 3]]
half = dist.split_group(split_ranks=halves)
torch.manual_seed(0)
net = torch.nn.Linear(16, 2)
model = DistributedDataParallel(net)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
torch.manual_seed(rank)
job = taskd.protect(model=model, optimizer=optimizer)
with record.Record(out, rank) as log:
    for attempt in job.steps(12):
        with attempt as step:
            fault.at("begin", step)
            loss = model(torch.randn(8, 16)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            fault.at("backward", step)
            part = loss.detach().clone()
            dist.all_reduce(part, group=half)
            again = dist.split_group(split_ranks=halves)
            dist.all_reduce(part, group=again)
            dist.destroy_process_group(again)
            fault.at("divided", step)
            optimizer.step()
        if attempt.done:
            log.step(step, part)
    log.final(net, optimizer)
record.leave(job)

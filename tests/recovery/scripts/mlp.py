"""A small training job with everything that makes bit-exactness hard: dropout, batch norm,
momentum, a scheduler, an all-reduce in the tail.

mlp.py OUT STEPS      faults come from the environment, see faults.py
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

import taskd

sys.path.insert(0, str(Path(__file__).parent))
import faults
import record

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
out, steps = Path(sys.argv[1]), int(sys.argv[2])
fault = faults.Injector(out, rank)

torch.manual_seed(7)
layers: list[torch.nn.Module] = [torch.nn.Linear(32, 96), torch.nn.BatchNorm1d(96), torch.nn.ReLU()]
for _ in range(4):
    layers += [torch.nn.Linear(96, 96), torch.nn.Tanh(), torch.nn.Dropout(0.1)]
net = torch.nn.Sequential(*layers, torch.nn.Linear(96, 8))
model = DDP(net, bucket_cap_mb=0.05)  # several buckets, laid anew after the first step by default
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.9)
torch.manual_seed(100 + rank)
fault.hook(net, optimizer)
fault.at("setup", int(os.environ.get("TASKD_INCARNATION", "0")))
job = taskd.protect(model=model, optimizer=optimizer, scheduler=scheduler)
with record.Record(out, rank) as log:
    for attempt in job.steps(steps):
        with attempt as step:
            fault.at("begin", step)
            generator = torch.Generator().manual_seed(step * 1000 + rank)
            x = torch.randn(16, 32, generator=generator)
            y = torch.randint(0, 8, (16,), generator=generator)
            loss = torch.nn.functional.cross_entropy(model(x), y)
            fault.at("forward", step)
            optimizer.zero_grad()
            loss.backward()
            fault.at("reduced", step)
            optimizer.step()
            fault.at("tail", step)
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            fault.at("tail-reduced", step)
            scheduler.step()
            fault.at("end", step)
        if attempt.done:
            log.step(step, loss, mean, torch.tensor(scheduler.get_last_lr()))
        if attempt.committed:
            log.committed(step)
        fault.at("between", step)
    fault.at("after", steps)
    log.final(net, optimizer)
record.leave(job)

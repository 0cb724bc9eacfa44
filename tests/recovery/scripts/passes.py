"""Short passes over a loader, and code between steps and passes that draws random numbers: every
moment between two attempts counts.

passes.py OUT PASSES      3 steps each
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

import taskd

sys.path.insert(0, str(Path(__file__).parent))
import faults
import record

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
out, passes = Path(sys.argv[1]), int(sys.argv[2])
fault = faults.Injector(out, rank)
torch.manual_seed(3)
net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 2))
model = DDP(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
torch.manual_seed(50 + rank)
# iter() draws a seed
loader = DataLoader(
    TensorDataset(torch.randn(12, 8), torch.arange(12) % 2), batch_size=4, shuffle=True
)
job = taskd.protect(model=model, optimizer=optimizer)
fault.at("setup", int(os.environ.get("TASKD_INCARNATION", "0")))
with record.Record(out, rank) as log:
    for number in range(passes):
        fault.at("pass", number)
        torch.randn(1)  # as an evaluation would
        fault.at("pass-drawn", number)
        for attempt in job.batches(loader):
            with attempt as (step, (x, y)):
                fault.at("begin", step)
                noise = 0.1 * torch.randn(4, 8)
                loss = torch.nn.functional.cross_entropy(model(x + noise), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                fault.at("tail", step)
            if attempt.done:
                log.step(step, loss, x.sum(), noise.sum())
            fault.at("between", step)
            if step % 2:
                torch.rand(1)
            fault.at("between-drawn", step)
    log.final(net, optimizer)
record.leave(job)

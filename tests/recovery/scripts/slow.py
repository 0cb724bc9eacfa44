"""A rank that is slow from a step on: 30 ms more in its forward.

slow.py OUT STEPS RANK FROM; it ends when OUT/stop is there
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

import taskd

sys.path.insert(0, str(Path(__file__).parent))
import record

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
out, steps, slow, since = Path(sys.argv[1]), *map(int, sys.argv[2:])
torch.manual_seed(7)
net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
model = DDP(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
loader = torch.utils.data.DataLoader(torch.randn(8 * steps, 64), batch_size=8)
job = taskd.protect(model=model, optimizer=optimizer)
with record.Record(out, rank) as log:
    for attempt in job.batches(loader):
        with attempt as (step, batch):
            loss = model(batch).square().mean()
            time.sleep(0.02 + 0.03 * (rank == slow and step >= since))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            # together: a rank that has begun the next step would miss the others
            stop = torch.tensor(float((out / "stop").exists()))
            dist.all_reduce(stop, dist.ReduceOp.MAX)
            if step % 50 == 0 and rank == 0:
                torch.save(net.state_dict(), out / "saved")
        if attempt.done:
            log.step(step, loss, mean)
        if attempt.done and stop:
            os._exit(0)
    log.final(net, optimizer)
record.leave(job)

"""Leaves its loop at the step after SIGTERM, on all ranks, with loaders' workers, and writes what a
checkpoint would have.

leaving.py OUT
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import taskd

told = torch.zeros(1)
signal.signal(signal.SIGTERM, lambda number, frame: told.fill_(1))
dist.init_process_group("gloo")
rank, out = dist.get_rank(), Path(sys.argv[1])
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(torch.ones(1_000_000, 4), batch_size=1, num_workers=1)
# what the rank has started is told too, once the rank has ended
beside = f"trap 'touch {out}/told-{rank}; exit' TERM; sleep 3600 & wait"
subprocess.Popen(["sh", "-c", beside])
job = taskd.protect(model=model, optimizer=optimizer)
leave = False
for attempt in job.batches(loader):
    with attempt as (step, batch):
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        everywhere = told.clone()
        dist.all_reduce(everywhere)
        leave = bool(everywhere)
        time.sleep(0.02)
    if attempt.committed:
        (out / f"trains-{rank}").write_text(str(os.getpid()))
        if leave:
            break
time.sleep(0.5)  # the loader's workers live until then
(out / f"saved-{rank}").write_text(str(step))

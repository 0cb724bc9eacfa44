"""Ranks that run different numbers of steps.

planning.py OUT
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist

import taskd

sys.path.insert(0, str(Path(__file__).parent))
import record

dist.init_process_group("gloo")
rank = dist.get_rank()
net = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
job = taskd.protect(net=net, optimizer=optimizer)
with record.Record(Path(sys.argv[1]), rank) as log:
    for attempt in job.steps(20 + rank):
        with attempt as step:
            loss = torch.zeros(())
        if attempt.done:
            log.step(step, loss)

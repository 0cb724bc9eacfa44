"""A job to be hurt from outside while it trains: whatever `taskd inject` aims at fills memory pages
here, and a protected run takes its time until OUT/hurry is there.

steered.py OUT STEPS

It waits before protect() while OUT/wait is there; "table" at "begin" poisons the script's own
table. Where OUT/hold is there at the start, a dump is written once it is gone.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

import taskd
from taskd.cython_api import poison

sys.path.insert(0, str(Path(__file__).parent))
import faults
import record

PAGE = 4096
# seconds a step: 100 steps leave 10 s for what is done to them, and on a busy machine the last ones
# leave more; shorter naps would be more steps, which cost more than the wait
NAP, LAST, LONGER = 0.16, 30, 1.0

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
out, steps = Path(sys.argv[1]), int(sys.argv[2])
fault = faults.Injector(out, rank)
torch.manual_seed(7)
net = torch.nn.Sequential(
    torch.nn.Linear(32, 64),
    torch.nn.Tanh(),
    torch.nn.Dropout(0.1),
    torch.nn.Linear(64, 2048),
    torch.nn.BatchNorm1d(2048),  # a buffer of 8 KiB has a page of its own wherever it lies
    torch.nn.ReLU(),
    torch.nn.Linear(2048, 8),
)
model = DDP(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
# the script's own: made once, read in every step, and not protected
table = torch.randn(3 * PAGE // 4)
torch.manual_seed(100 + rank)
fault.at("setup", int(os.environ.get("TASKD_INCARNATION", "0")))
while (out / "wait").exists():
    time.sleep(0.01)
if (out / "hold").exists():
    from taskd.worker.repair import dumping

    def held(*arguments, save=dumping.save):
        (out / "writing").touch()
        while (out / "hold").exists():
            time.sleep(0.01)
        return save(*arguments)

    dumping.save = held
job = taskd.protect(model=model, optimizer=optimizer)


def suffer(point: str) -> None:
    kind = fault.asked(point)
    if kind == "table":
        poison.page(-(-table.data_ptr() // PAGE) * PAGE)
    elif kind:
        faults.strike(kind)


with record.Record(out, rank) as log:
    for attempt in job.steps(steps):
        with attempt as step:
            suffer("begin")
            generator = torch.Generator().manual_seed(step * 1000 + rank)
            x = torch.randn(8, 32, generator=generator) + 0.01 * table.sum()
            y = torch.randint(0, 8, (8,), generator=generator)
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            suffer("tail")
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            if job.protected and not (out / "hurry").exists():
                time.sleep(NAP if step < steps - LAST else LONGER)
        if attempt.done:
            log.step(step, loss, mean)
        if attempt.committed:
            log.committed(step)
    log.final(net, optimizer)
record.leave(job)

"""Losses that are checked, and errors of a device that the script has told taskd about.

checked.py OUT STEPS      in some steps the data make the losses of some ranks infinite
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

import taskd
from taskd.devices import FaultType, Pattern, register

sys.path.insert(0, str(Path(__file__).parent))
import faults
import record

INFINITE = {18: (1, 2), 19: (1,), 20: (0, 1, 2), 21: (0, 1, 2), 23: (2,)}

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
out, steps = Path(sys.argv[1]), int(sys.argv[2])
fault = faults.Injector(out, rank)
register(Pattern("XPU ECC", FaultType.MEMORY, texts=("xpu memory",)))
register(Pattern("XPU core", FaultType.OTHER, texts=("xpu core stopped",)))
register(Pattern("XPU link", FaultType.NETWORK, texts=("xpu port down",)))
torch.manual_seed(3)
net = torch.nn.Sequential(
    torch.nn.Linear(16, 64),
    torch.nn.BatchNorm1d(64),
    torch.nn.Dropout(0.2),
    torch.nn.Tanh(),
    torch.nn.Linear(64, 4),
)
model = DDP(net)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
torch.manual_seed(50 + rank)
fault.hook(net, optimizer)
job = taskd.protect(model=model, optimizer=optimizer)
with record.Record(out, rank) as log:
    for attempt in job.steps(steps):
        with attempt as step:
            fault.at("begin", step)
            generator = torch.Generator().manual_seed(step * 1000 + rank)
            x, y = (
                torch.randn(8, 16, generator=generator),
                torch.randint(0, 4, (8,), generator=generator),
            )
            loss = torch.nn.functional.cross_entropy(model(x), y)
            if rank in INFINITE.get(step, ()):
                loss = loss / 0
            finite = torch.tensor(float(job.check(loss)))
            if not job.protected:  # else all ranks are told the same
                dist.all_reduce(finite, op=dist.ReduceOp.MIN)
            optimizer.zero_grad()
            if finite:
                loss.backward()
                fault.at("reduced", step)
                optimizer.step()
            fault.at("tail", step)
        if attempt.done:
            log.step(step, loss, finite)
        fault.at("between", step)
    log.final(net, optimizer)
record.leave(job)

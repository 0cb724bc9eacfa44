"""A script that knows nothing of taskd, and goes on from its own checkpoint when it starts again.

unprotected.py OUT STEPS
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent))
import record

NAP = 0.16  # seconds a step under taskd, until OUT/hurry is there

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
out, steps = Path(sys.argv[1]), int(sys.argv[2])
torch.manual_seed(7)
net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
saved, first = out / "checkpoint", 0
if saved.exists():
    found = torch.load(saved)
    first = found["step"]
    net.load_state_dict(found["net"])
    optimizer.load_state_dict(found["optimizer"])
with record.Record(out, rank) as log:
    for step in range(first, steps):
        generator = torch.Generator().manual_seed(step * 1000 + rank)
        x = torch.randn(8, 32, generator=generator)
        y = torch.randint(0, 8, (8,), generator=generator)
        loss = torch.nn.functional.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        # not DDP: its sums depend on how long a process has run, so that a restart changes them
        for parameter in net.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0 and (step + 1) % 10 == 0:
            state = {"step": step + 1, "net": net.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, saved.with_suffix(".new"))
            os.replace(saved.with_suffix(".new"), saved)
        log.step(step, loss, mean)
        if "TASKD_AGENT" in os.environ and not (out / "hurry").exists():
            time.sleep(NAP)
    log.final(net, optimizer)
os._exit(0)  # see record.leave

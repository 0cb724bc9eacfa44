"""A script whose set-up, and whose code between passes, learn by collectives what training needs.

learning.py OUT PASSES [VICTIM]     6 steps each

VICTIM: a rank that leaves the evaluation's collective last, all the others being on their way to
the next pass.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

import taskd

sys.path.insert(0, str(Path(__file__).parent))
import faults
import record

torch.set_num_threads(1)
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))  # makes the default group
rank = dist.get_rank()
out, passes = Path(sys.argv[1]), int(sys.argv[2])
victim = int(sys.argv[3]) if len(sys.argv) > 3 else None
fault = faults.Injector(out, rank)


def behind(collective: str) -> None:
    """Wait until all ranks have left it: a death before that is one inside the collective."""
    (out / f"behind-{collective}-{rank}").touch()
    while len(list(out.glob(f"behind-{collective}-*"))) < 4:
        time.sleep(0.005)


assert dist.get_backend() in ("undefined", "gloo")  # never that of the stand-in
dist.monitored_barrier(dist.new_group(backend="gloo"))

# rank 0's is another in each process
name = [f"{time.time()}{'-' * (os.getpid() % 7)}"] if rank == 0 else [None]
dist.broadcast_object_list(name, 0)
print(name[0], file=open(out / f"name-{rank}", "a"))
parts = [None] * 4
dist.all_gather_object(parts, {"samples": 90 + rank})
mine = [None]
dist.scatter_object_list(mine, [{"shift": i} for i in range(4)] if rank == 0 else None, src=0)
width = torch.tensor(8 + rank)
dist.all_reduce(width, op=dist.ReduceOp.MAX)
weight = torch.tensor([rank + 1.0], dtype=torch.bfloat16)
dist.all_reduce(weight, group=mesh["tp"].get_group(), async_op=True).wait()
total = functional.all_reduce(torch.tensor([float(rank)]), "sum", dist.group.WORLD) + 0
passed = torch.zeros(1)
if rank == 0:
    dist.send(torch.tensor([5.0]), 1)
elif rank == 1:
    dist.recv(passed, 0)
store = dist.distributed_c10d._get_default_store()
if rank == 0:
    store.set("scale", "0.5")
scale = float(store.get("scale")) * weight.item() * total.item() + passed.item()
scale += sum(part["samples"] for part in parts) / 400 + mine[0]["shift"]

torch.manual_seed(3)
net = torch.nn.Sequential(torch.nn.Linear(8, int(width)), torch.nn.Linear(int(width), 2))
model = DDP(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
data = torch.randn(4 * 4 * 6, 8, generator=torch.Generator().manual_seed(5))
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=4, sampler=sampler)
torch.manual_seed(50 + rank)
job = taskd.protect(model=model, optimizer=optimizer)
dist.barrier()
behind("barrier")
fault.at("ready", 0)
with record.Record(out, rank) as log:
    for epoch in range(passes):
        sampler.set_epoch(epoch)
        for attempt in job.batches(loader):
            with attempt as (step, x):
                fault.at("begin", step)
                loss = model(x).square().mean() * scale
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                fault.at("tail", step)
            if attempt.done:
                log.step(step, loss)
        with torch.no_grad():
            value = net(torch.full((4, 8), rank + 1.0)).square().mean()
        work = dist.all_reduce(value, async_op=True)
        if rank == victim:
            while len(list(out.glob(f"left-{epoch}-*"))) < 3:
                time.sleep(0.005)
            fault.at("inside", epoch)
        work.wait()
        (out / f"left-{epoch}-{rank}").touch()
        for group in optimizer.param_groups:  # what is learnt here decides how training goes on
            group["lr"] = 0.05 / (1 + value.item() % 1)
        if victim is None:
            behind(f"evaluation-{epoch}")
        fault.at("evaluated", epoch)
    log.final(net, optimizer)
record.leave(job)

"""A loop of the script's own with what Lightning's Fabric has set up.

fabric_loop.py OUT KIND   batches: job.batches over a loader of Fabric's, accumulation
                          workers: as batches, a process loads them
                          calls: job.iterate and job.call, with an all_reduce in each step
                          sharded: as batches, ModelParallelStrategy with fully_shard
Faults come from the environment, see tests/recovery/scripts/faults.py.
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from lightning.fabric import Fabric, seed_everything
from lightning.fabric.strategies import ModelParallelStrategy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import taskd

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "recovery/scripts"))
import faults
import record

out, kind = Path(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)


def shard(model, mesh):
    from torch.distributed.fsdp import fully_shard

    for layer in (model[0], model[3]):
        fully_shard(layer, mesh=mesh["data_parallel"])
    return fully_shard(model, mesh=mesh["data_parallel"])


world = int(os.environ["WORLD_SIZE"])
strategy = ModelParallelStrategy(shard, world, 1) if kind == "sharded" else "ddp"
fabric = Fabric(accelerator="cpu", devices=world, strategy=strategy)
fabric.launch()
seed_everything(5 + fabric.global_rank)
fault = faults.Injector(out, fabric.global_rank)
net = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Dropout(0.1), nn.Linear(12, 1))
data = torch.randn(45, 7, generator=torch.Generator().manual_seed(1))
loader = DataLoader(
    TensorDataset(data[:, :6], data[:, 6:]),
    4,
    shuffle=True,
    num_workers=int(kind == "workers"),
    generator=torch.Generator().manual_seed(9),
)
if kind == "sharded":
    model = fabric.setup_module(net)
    adam = torch.optim.AdamW(model.parameters(), lr=1e-2)
    optimizer = fabric.setup_optimizers(adam)
else:
    adam = torch.optim.AdamW(net.parameters(), lr=1e-2)
    model, optimizer = fabric.setup(net, adam)
loader = fabric.setup_dataloaders(loader)
scheduler = torch.optim.lr_scheduler.LinearLR(adam, 1.0, 0.1, 30)
job = taskd.protect(model=model, optimizer=optimizer, scheduler=scheduler)


def micro_step(step, batch):
    x, y = batch
    fault.at("begin", step)
    last = step % 2 == 1
    with fabric.no_backward_sync(model, enabled=not last and kind != "sharded"):
        loss = (model(x) - y).square().mean()
        fabric.backward(loss)
    fault.at("backward", step)
    if last:
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    fault.at("tail", step)
    return loss.detach()


def call(step, batches):
    loss = micro_step(step, next(batches))
    return fabric.all_reduce(loss)


with record.Record(out, fabric.global_rank) as log:
    if kind == "calls":
        batches = job.iterate(lambda epoch: loader)
        epochs = 0
        for step in range(job.step, 20):
            try:
                log.step(step, job.call(call, step, batches))
            except StopIteration:
                epochs += 1
    else:
        for _ in range(3):
            for attempt in job.batches(loader):
                with attempt as (step, batch):
                    loss = micro_step(step, batch)
                if attempt.done:
                    log.step(step, loss)
    job.finish()
    of_adam = [v for p in adam.param_groups[0]["params"] for v in adam.state[p].values()]
    tensors = [getattr(t, "to_local", lambda t=t: t)() for t in (*net.parameters(), *of_adam)]
    log.final(nn.ParameterList(nn.Parameter(t.detach(), False) for t in tensors), scheduler)
if not job.protected:
    dist.barrier()
    os._exit(0)

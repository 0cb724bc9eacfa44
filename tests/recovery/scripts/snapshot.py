"""A script that goes on from a snapshot of its own, which it writes while it trains.

snapshot.py OUT KIND STEPS once|always      KIND: steps, batches, call or range
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

import taskd

sys.path.insert(0, str(Path(__file__).parent))
import faults
import record

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
out, kind, total, how = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
fault = faults.Injector(out, rank)
torch.manual_seed(3)
net = torch.nn.Linear(8, 2)
model = DDP(net)
optimizer = torch.optim.AdamW(model.parameters())
snapshot, LENGTH = out / "snapshot.pt", 5


def load() -> int:
    if not snapshot.exists():
        return 4  # as if an earlier run had got there
    saved = torch.load(snapshot)
    net.load_state_dict(saved["net"])
    optimizer.load_state_dict(saved["optimizer"])
    return saved["step"]


def save(step: int) -> None:
    if rank == 0 and step % 5 == 0:
        state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, snapshot.with_suffix(".new"))
        os.replace(snapshot.with_suffix(".new"), snapshot)


start = taskd.once(load) if how == "once" else load()
job = taskd.protect(model=model, optimizer=optimizer)


def train(step: int, x: torch.Tensor) -> torch.Tensor:
    fault.at("begin", step)
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    fault.at("tail", step)
    return loss


def batch(step: int) -> torch.Tensor:
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(step * 10 + rank))


with record.Record(out, rank) as log:
    if kind == "steps":
        for attempt in job.steps(total, start=start):
            with attempt as step:
                loss = train(step, batch(step))
            if attempt.done:
                log.step(step, loss)
                save(step + 1)
    elif kind == "call":
        job.begin_at(start)
        for step in range(job.step, total):
            log.step(step, job.call(train, step, batch(step)))
            save(step + 1)
        job.finish()
    elif kind == "range":
        for step in range(start + job.step, total):
            log.step(step, job.call(train, step, batch(step)))
            save(step + 1)
            fault.at("between", step)
        job.finish()
    else:
        data = torch.randn(2 * 4 * LENGTH, 8, generator=torch.Generator().manual_seed(5))
        sampler = DistributedSampler(data)
        loader = DataLoader(data, batch_size=4, sampler=sampler)
        job.begin_at(start // LENGTH * LENGTH)
        for epoch in range(start // LENGTH, total // LENGTH):
            sampler.set_epoch(epoch)
            for attempt in job.batches(loader):
                with attempt as (step, x):
                    loss = train(step, x)
                if attempt.done:
                    log.step(step, loss)
            save((epoch + 1) * LENGTH)
    log.final(net, optimizer)
record.leave(job)

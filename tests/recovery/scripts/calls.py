"""A loop that calls a function for each step, as frameworks have it; the learning rate is changed
between the calls.

calls.py OUT STEPS KIND   loader: two batches a step, from a shuffling loader
                          workers: the same, loaded by a worker process
                          stream: from a generator over all epochs, which draws itself
                          arguments: drawn between the calls and given to the function
                          passes: a function gives the loader; a call ends each pass, too
                          attempts: from a loader, inside of job.steps
                          fsdp: as loader, sharded
                          scaled: arguments, which the function changes in place
                          clipped: parameters are changed between the calls
                          drawn-late: arguments that a replacement cannot draw again
Faults come from the environment, see faults.py. A protected run takes its time.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

import taskd

sys.path.insert(0, str(Path(__file__).parent))
import faults
import record

dist.init_process_group("gloo")
rank = dist.get_rank()
out, total, kind = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
torch.set_num_threads(1)
fault = faults.Injector(out, rank)
torch.manual_seed(7)
net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 1))
if kind == "fsdp":
    from torch.distributed.fsdp import fully_shard

    model = fully_shard(net)
else:
    model = DDP(net)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 20)
torch.manual_seed(100 + rank)
many = 24 if kind == "passes" else 120
samples = TensorDataset(torch.randn(many, 16), torch.randn(many, 1))
loader = DataLoader(
    samples,
    batch_size=4,
    shuffle=True,
    generator=torch.Generator().manual_seed(rank),
    num_workers=1 if kind == "workers" else 0,
)


def stream():
    while True:
        for x, y in loader:
            yield x + 0.1 * torch.randn(x.shape), y


fault.at("setup", int(os.environ.get("TASKD_INCARNATION", "0")))
job = taskd.protect(model=model, optimizer=optimizer, scheduler=scheduler)
source = loader if kind in ("loader", "workers", "fsdp", "attempts") else stream()
data = job.iterate((lambda number: loader) if kind == "passes" else source)


def note(step: int) -> None:
    with open(out / f"noted.{rank}", "a") as notes:
        print(step, file=notes)


def train_step(step: int, batches, model, optimizer) -> torch.Tensor:
    fault.at("begin", step)
    if kind == "passes":
        job.on_commit(note, step)
    optimizer.zero_grad()
    for part in (0, 1):
        x, y = next(batches)
        if kind == "scaled":
            x.mul_(0.5)
        loss = (model(x) - y).square().mean()
        loss.backward()
        fault.at(f"backward{part}", step)
    optimizer.step()
    fault.at("tail", step)
    if job.protected:
        time.sleep(0.05)
    return loss.detach()


with record.Record(out, rank) as log:
    if kind == "attempts":
        for attempt in job.steps(total):
            with attempt as step:
                loss = train_step(step, data, model, optimizer)
            if attempt.done:
                log.step(step, loss)
            fault.at("between", step)
            scheduler.step()
    else:
        for step in range(job.step, total):
            given = data
            fault.at("before", step)
            if kind in ("arguments", "scaled", "drawn-late"):
                scale = 1 + 0.1 * torch.randn(1)
                given = [(x * scale, y) for x, y in (next(data), next(data))]
            try:
                loss = job.call(
                    lambda step, batches: train_step(step, iter(batches), model, optimizer),
                    step,
                    given,
                )
            except StopIteration:
                loss = torch.tensor(-1.0)
            log.step(step, loss)
            fault.at("between", step)
            scheduler.step()
            if kind == "clipped":
                with torch.no_grad():
                    for parameter in net.parameters():
                        parameter.clamp_(-0.2, 0.2)
            if kind == "drawn-late":
                torch.rand(1)
        fault.at("end", 0)
        job.finish()
    shards = nn.Module()
    shards.parts = nn.ParameterList(
        nn.Parameter(getattr(p, "_local_tensor", p).detach().clone()) for p in net.parameters()
    )
    log.final(shards, scheduler)
record.leave(job)

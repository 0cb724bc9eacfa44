"""A script that works between its passes: a mean of losses, an evaluation over all ranks, a file
for each epoch, an early stop, a loader made of what steps have found, a second loop afterwards.

epochs.py OUT LOOP     "epochs": over job.epochs; "range": only what a loop over range may do
"""

import random
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, WeightedRandomSampler

import taskd

sys.path.insert(0, str(Path(__file__).parent))
import faults
import record

torch.set_num_threads(1)
out, over_epochs = Path(sys.argv[1]), sys.argv[2] == "epochs"
dist.init_process_group("gloo")
rank = dist.get_rank()
fault = faults.Injector(out, rank)
torch.manual_seed(1)
net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
model = DDP(net)
average = torch.optim.swa_utils.AveragedModel(net)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.8)
torch.manual_seed(10 + rank)
random.seed(20 + rank)
rows = [(i, torch.randn(8)) for i in range(24)]
job = taskd.protect(model=model, average=average, optimizer=optimizer, scheduler=scheduler)


def train(step, x):
    fault.at("begin", step)
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    fault.at("tail", step)
    log.step(step, loss)
    return loss


def evaluate():
    with torch.no_grad():
        found = net(torch.full((1, 8), random.random()) + torch.rand(8)).sum()
    dist.all_reduce(found)
    return found


def epoch_of(loader):
    total, count, rate = 0.0, 0, scheduler.get_last_lr()[0]
    for attempt in job.batches([torch.full((2, 8), rate)]):  # a first pass of the epoch
        with attempt as (step, x):
            rate += train(step, x).item()
    sign = 1.0 if rate > 0.1 else -1.0
    for attempt in job.batches(loader):
        with attempt as (step, (indices, x)):
            loss = train(step, sign * rate * x)
            for i in indices.tolist():
                hardness[i] = 1.0 + step + loss.item() % 1.0
            total, count = total + loss.item(), count + 1
        fault.at("between", step)
    return total / count, loss


with record.Record(out, rank) as log:
    for attempt in job.steps(3):
        with attempt as step:
            loss = train(step, torch.ones(4, 8))
    scale = 1.0 + taskd.once(lambda: loss.item())
    warm = loss.item() if over_epochs else scale - 1.0
    log.step(100, torch.tensor(warm))
    shuffled = DataLoader(rows, batch_size=6, shuffle=True)
    hardness, best, bad = [1.0] * len(rows), float("inf"), 0
    for epoch in job.epochs(5) if over_epochs else range(4):
        if not over_epochs:
            for attempt in job.batches(shuffled):
                with attempt as (step, (_, x)):
                    train(step, x)
                fault.at("between", step)
            fault.at("epoch", epoch)
            scheduler.step()
            average.update_parameters(net)
            random.random(), torch.rand(1)
            continue
        order = random.sample(rows, len(rows))  # random numbers of the epoch's begin
        sampler = WeightedRandomSampler([hardness[i] for i, _ in order], len(order))
        mean, loss = epoch_of(DataLoader(order, batch_size=6, sampler=sampler))
        fault.at("epoch", epoch)
        value = evaluate()
        fault.at("evaluated", epoch)
        scheduler.step()
        average.update_parameters(net)
        if rank == 0:
            torch.save({"net": net.state_dict(), "mean": mean}, out / f"epoch-{epoch}")
        log.step(101 + epoch, torch.tensor(mean), loss, value, torch.tensor(best))
        bad = bad + 1 if mean > best else 0
        best = min(best, mean)
        if epoch == 3 or bad == 3:
            break
    if over_epochs:
        log.step(110, evaluate(), torch.tensor(best), loss)
        fault.at("left", epoch)
    for attempt in job.steps(31 if over_epochs else 23):
        with attempt as step:
            train(step, torch.full((2, 8), scale))
    if over_epochs and rank == 0:
        for epoch in range(4):
            saved = torch.load(out / f"epoch-{epoch}")
            log.step(120 + epoch, sum(v.sum() for v in saved["net"].values()))
    log.final(net, average, optimizer)
record.leave(job)

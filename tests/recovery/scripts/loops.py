"""Loops that carry variables from step to step, as people write them.

loops.py OUT KIND
  module    a prefetched batch, a hidden state, a mean, a history, the best loss, in a module
  function  the same in a function, with closures, globals and an object that counts
  epochs    counters over steps and passes
  trainer   attributes, changed in methods
  calls     attributes and containers that a function of job.call changes
  library   an object of a library that accumulates gradients, a GradScaler that is switched off
  drawn     a loader that the script steps by itself
  drift     a library's iterator decides about the update
  late      a variable that cannot be recorded from the fourth step on
  clean     nothing is carried; what lives at the end of a step is counted
"""

import itertools
import os
import sys
import weakref
from collections import deque
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

import taskd

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent / "site-packages"))
import accumulation
import faults
import record

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
out, kind, STEPS = Path(sys.argv[1]), sys.argv[2], 16
fault = faults.Injector(out, rank)
torch.manual_seed(3)
net = torch.nn.Sequential(
    torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 8), torch.nn.Linear(8, 2)
)
model = DDP(net)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
fault.hook(net, optimizer)
torch.manual_seed(50 + rank)
log = record.Record(out, rank)


def batch() -> torch.Tensor:
    return torch.randn(4, 8)


def update(loss: torch.Tensor, step: int) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    fault.at("tail", step)


def value(number: float) -> torch.Tensor:
    return torch.tensor(float(number), dtype=torch.float64)


class Meter:
    def __init__(self) -> None:
        self.total, self.count, self.last = 0.0, 0, None

    def update(self, loss: float) -> None:
        self.last = loss
        self.total += loss
        self.count += 1

    @property
    def mean(self) -> float:
        return self.total / max(1, self.count)


seen_steps, recent = 0, deque(maxlen=3)


def note(loss: float) -> float:
    global seen_steps
    seen_steps += 1
    recent.append(loss)
    return sum(recent) / len(recent) + seen_steps


def function(job) -> None:
    hidden, mean, best, history, seen = torch.zeros(8), None, {"loss": 9.0}, [], set()
    table, meter, calls, average = torch.zeros(2), Meter(), 0, accumulation.Average("loss")

    def count() -> int:
        nonlocal calls
        calls += 1
        return calls

    for attempt in job.steps(STEPS):
        with attempt as step:
            fault.at("begin", step)
            loss = model(batch() + hidden).square().mean()
            number = loss.item()
            mean = number if mean is None else 0.9 * mean + 0.1 * number
            hidden = (hidden + loss.detach()) * 0.5
            best["loss"] = min(best["loss"], number)
            history.append(number)
            seen.add(step % 5)
            table[step % 2] += 1
            meter.update(number)
            average.update(number, 4)
            scale = mean + best["loss"] + sorted(history)[len(history) // 2] + len(seen)
            scale += average.mean
            update(loss * (scale + meter.mean + note(number) + count() + table.sum()), step)
        if attempt.committed:
            log.step(step, loss, value(mean), hidden.sum(), value(scale), value(calls))
        fault.at("between", step)


def epochs(job) -> None:
    loader = DataLoader(TensorDataset(torch.randn(16, 8)), batch_size=4, shuffle=True)
    best, worse, total = 9.0, 0, 0
    for _ in range(4):
        running = 0.0
        for attempt in job.batches(loader):
            with attempt as (step, (x,)):
                fault.at("begin", step)
                loss = model(x).square().mean() * (1 + worse + 0.1 * total)
                total += 1
                running += loss.item()
                update(loss, step)
            if attempt.committed:
                log.step(step, loss, value(running), value(best), value(total))
        if running < best:
            best = running
        else:
            worse += 1


class Trainer:
    def __init__(self, job) -> None:
        self.job, self.number, self.mean, self.loss = job, 0, torch.zeros(()), None
        self.norms: list[float] = []

    def step(self, x: torch.Tensor, step: int) -> None:
        self.loss = model(x).square().mean() * (1 + self.number + self.mean)
        self.number += 1
        self.mean = 0.5 * self.mean + self.loss.detach()
        self.norms.append(self.loss.item())
        update(self.loss + sum(self.norms) * self.loss, step)

    def run(self) -> None:
        for attempt in self.job.steps(STEPS):
            with attempt as step:
                fault.at("begin", step)
                self.step(batch(), step)
            if attempt.committed:
                log.step(step, self.loss, value(self.number), self.mean, value(len(self.norms)))

    def call(self, step: int) -> torch.Tensor:
        fault.at("begin", step)
        self.step(batch(), step)
        return self.loss.detach()

    def calls(self) -> None:
        for step in range(self.job.step, STEPS):
            loss = self.job.call(self.call, step)
            log.step(step, loss, value(self.number), self.mean, value(len(self.norms)))
        self.job.finish()


def library(job, trainer, scaler) -> None:
    for attempt in job.steps(STEPS):
        with attempt as step:
            fault.at("begin", step)
            with trainer.accumulate():
                loss = model(batch()).square().mean()
                scaler.scale(loss).backward()
                if trainer.state.synchronized:
                    scaler.step(optimizer)
                    scaler.update()
                    optimizer.zero_grad()
            fault.at("tail", step)
        if attempt.committed:
            log.step(step, loss, value(trainer.number), value(trainer.state.synchronized))


def drawn(job) -> None:
    loader = iter(DataLoader(torch.randn(200, 8), batch_size=4))
    for attempt in job.steps(STEPS):
        with attempt as step:
            fault.at("begin", step)
            update(model(next(loader)).square().mean(), step)


def drift(job) -> None:
    numbers = itertools.count(1)
    for attempt in job.steps(STEPS):
        with attempt as step:
            fault.at("begin", step)
            optimizer.param_groups[0]["lr"] = 0.01 / next(numbers)
            update(model(batch()).square().mean(), step)


def late(job) -> None:
    kept = None
    for attempt in job.steps(STEPS):
        with attempt as step:
            loss = model(batch()).square().mean() + (kept is None)
            kept = weakref.ref(net) if step > 3 else step
            update(loss, step)


def clean(job) -> None:
    batches = []
    for attempt in job.steps(STEPS):
        with attempt as step:
            x = batch()
            batches.append(weakref.ref(x))
            fault.at("begin", step)
            loss = model(x).square().mean()
            update(loss, step)
        if attempt.committed:
            alive = [i for i, kept in enumerate(batches) if kept() is not None]
            log.step(step, loss, value(len(alive)))


extra = {}
if kind == "library":
    extra["scaler"] = torch.amp.GradScaler("cpu", enabled=False)
    trainer = accumulation.Trainer(model, 3)
job = taskd.protect(model=model, optimizer=optimizer, **extra)
if kind == "module":
    ahead, hidden, mean, best, history = batch(), torch.zeros(8), 0.0, 9.0, []
    for attempt in job.steps(STEPS):
        with attempt as step:
            fault.at("begin", step)
            hidden = hidden.detach()
            loss = model(ahead + hidden).square().mean()
            ahead = batch()
            hidden = hidden * 0.5 + loss
            mean = 0.9 * mean + 0.1 * loss.item()
            history.append(mean)
            if loss.item() < best:
                best = loss.item()
            update(loss * (mean + best + sum(history)), step)
        if attempt.committed:
            log.step(step, loss, value(mean), value(best), value(len(history)), ahead.sum())
        fault.at("between", step)
elif kind == "library":
    library(job, trainer, **extra)
elif kind == "trainer":
    Trainer(job).run()
elif kind == "calls":
    Trainer(job).calls()
else:
    {
        "function": function,
        "epochs": epochs,
        "drawn": drawn,
        "drift": drift,
        "late": late,
        "clean": clean,
    }[kind](job)
log.final(net, optimizer)
if os.environ.get("TASKD_AGENT") is None:
    record.leave(job)

"""State where no state_dict looks: in hooks' closures, defaults and objects, in a schedule that
counts, in globals that a forward changes, in objects and nested dicts in attributes of the model
and of the optimizer. All of it changes the numbers of later steps."""

import functools
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

import taskd

sys.path.insert(0, str(Path(__file__).parent))
import faults
import record

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
out, steps = Path(sys.argv[1]), int(sys.argv[2])
fault = faults.Injector(out, rank)
torch.manual_seed(3)
forwards = 0
seen = {"inputs": 0}


@dataclass
class Mean:
    value: float = 0.0
    count: int = 0

    def update(self, value: float) -> float:
        self.count += 1
        self.value += (value - self.value) / self.count
        return self.value


@dataclass(slots=True)
class Slotted:
    calls: int = 0


class Pair(NamedTuple):
    calls: int
    mean: float


class Scale(torch.autograd.Function):
    calls = 0

    @staticmethod
    def forward(ctx, x):
        Scale.calls += 1
        return x * (1 + 0.001 * Scale.calls)

    @staticmethod
    def backward(ctx, gradient):
        Scale.calls += 10
        return gradient * (1 + 0.0001 * Scale.calls)


class Net(torch.nn.Module):
    made = 0

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)
        self.mean = Mean()
        self.stats = {"outputs": {"calls": 0, "last": [0.0]}}
        self.slotted, self.pair, self.running = Slotted(), Pair(0, 0.0), numpy.float64(0)
        self.counted, self.matrix = defaultdict(int), [[0, 0], [0, 0]]

    @staticmethod
    def count() -> None:
        Net.made += 1

    def more(self, x: torch.Tensor) -> float:
        self.count()
        self.slotted.calls += 1
        self.pair = Pair(self.pair.calls + 1, 0.9 * self.pair.mean + float(x.mean()))
        self.running = 0.9 * self.running + float(x.std())
        self.counted["forwards"] += 1
        self.matrix[0][1] += 1
        found = self.slotted.calls + sum(self.pair) + self.running + Net.made
        return 0.001 * (found + self.counted["forwards"] + self.matrix[0][1])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        global forwards
        forwards += 1
        seen["inputs"] += len(x)
        mean = self.mean.update(float(x.mean()))
        self.stats["outputs"]["calls"] += 1
        self.stats["outputs"]["last"].append(mean)
        del self.stats["outputs"]["last"][:-3]
        scale = 1 + 0.001 * forwards + 0.0001 * seen["inputs"] + mean
        scale += 0.01 * self.stats["outputs"]["calls"] + sum(self.stats["outputs"]["last"])
        scale += self.more(x)
        return self.head(Scale.apply(torch.relu(self.body(x))) * scale)


class Warm(torch.optim.SGD):
    """Counts in an object, as libraries' optimizers do."""

    def __init__(self, *args, **more) -> None:
        super().__init__(*args, **more)
        self.inner = {"group": {"step": 0, "mean": Mean()}}

    def step(self, closure=None):
        group = self.inner["group"]
        group["step"] += 1
        scale = min(1.0, group["step"] / 10) + 0.01 * group["mean"].update(group["step"])
        for one in self.param_groups:
            for parameter in one["params"]:
                parameter.grad.mul_(scale)
        return super().step(closure)


def counting():
    calls, total = 0, torch.zeros(1)

    def hook(module, inputs, output, every=[0]):
        nonlocal calls, total
        calls += 1
        every[0] += 2
        total = 0.9 * total + output.detach().mean()
        return output * (1 + 0.01 * calls + 0.001 * every[0]) + total

    return hook


class Jitter:
    """An object that the loop calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * (1 + 0.01 * self.calls)


class Clip:
    def __init__(self, most: float) -> None:
        self.most, self.norms = most, Mean()

    def __call__(self, gradient: torch.Tensor) -> torch.Tensor:
        self.most *= 1.01
        norm = self.norms.update(float(gradient.norm()))
        return gradient * min(1.0, self.most / (norm + 1e-6))

    def before(self, optimizer, args, keywords) -> None:
        self.most *= 0.999


def growing(counts: dict, epoch: int) -> float:
    counts["asked"] += 1
    return 1 / (1 + 0.1 * counts["asked"])


net = Net()
net.body.register_forward_hook(counting())
clip = Clip(0.5)
net.head.weight.register_hook(clip)
model = DDP(net)
optimizer = Warm(net.parameters(), lr=0.1)
optimizer.register_step_pre_hook(clip.before)
del clip
counts = {"asked": 0}
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, functools.partial(growing, counts))
del counts
torch.manual_seed(50 + rank)
job = taskd.protect(model, optimizer, scheduler)
jitter = Jitter()

with record.Record(out, rank) as log:
    for attempt in job.steps(steps):
        with attempt as step:
            fault.at("begin", step)
            x = jitter(torch.randn(8, 8))
            loss = torch.nn.functional.cross_entropy(model(x), torch.arange(8) % 4)
            optimizer.zero_grad()
            loss.backward()
            fault.at("backward-done", step)
            optimizer.step()
            scheduler.step()
            fault.at("tail", step)
            mean = loss.detach().clone()
            dist.all_reduce(mean)
        if attempt.done:
            log.step(step, loss, mean, x.sum())
    log.final(net, optimizer)
record.leave(job)

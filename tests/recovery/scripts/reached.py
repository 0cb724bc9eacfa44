"""State in the script's own objects, which no protected object holds: meters in a dict, a loss that
counts, what a `with` in the loop changes, a module of globals, attributes of torch's own modules,
optimizer and parameters, a meter of each pass, and an object that data come through."""

import sys
from contextlib import AbstractContextManager
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

import taskd

sys.path.insert(0, str(Path(__file__).parent))
import faults
import house
import record

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
out, steps = Path(sys.argv[1]), int(sys.argv[2])
fault = faults.Injector(out, rank)
torch.manual_seed(3)
BATCH, PASS = 4, 5


class Meter:
    def __init__(self) -> None:
        self.total, self.count, self.limits = 0.0, 0, []

    def update(self, value: float) -> float:
        self.total, self.count = self.total + value, self.count + 1
        self.limits = sorted({*self.limits, round(value, 3)})[:5]
        return self.total / self.count + sum(self.limits)


class Loss(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        with torch.no_grad():
            self.mean.lerp_(output.mean(), 0.1)
        loss = torch.nn.functional.cross_entropy(output, target)
        return loss * (1 + 0.01 * self.calls) + self.mean


class Warmth(AbstractContextManager):
    entered = 0

    def __init__(self) -> None:
        self.depth = 0

    def __exit__(self, *error) -> None:
        self.depth += 1
        Warmth.entered += 1


class Noise:
    """What the data come through, which is no attribute of the loader."""

    def __init__(self) -> None:
        self.given = 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.given += 1
        return x * (1 + 0.001 * self.given)


noise = Noise()


class Rows(Dataset):
    def __init__(self) -> None:
        self.rows = torch.randn(BATCH * PASS, 8, generator=torch.Generator().manual_seed(rank))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return noise(self.rows[index])


net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
model, optimizer = DDP(net), torch.optim.SGD(net.parameters(), lr=0.05)
loss_of, meters = Loss(), {"loss": Meter(), "inner": [Meter(), Meter()]}
net[0].calls = optimizer.calls = 0
warmth, committed = Warmth(), Meter()
loader = DataLoader(Rows(), batch_size=BATCH)


def train_pass(job, log: record.Record) -> None:
    meter = Meter()
    for attempt in job.batches(loader):
        with attempt as (step, x):
            fault.at("begin", step)
            with warmth:
                house.calls += 1
                house.seen["inputs"] += len(x)
            scale = 1 + 0.001 * (house.calls + house.seen["inputs"] + warmth.depth + warmth.entered)
            net[0].calls += 1
            optimizer.calls += 2
            scale += 0.01 * (net[0].calls + optimizer.calls + meter.update(float(x.mean())))
            scale += 0.01 * meters["inner"][1].update(float(x.max())) + 0.01 * committed.count
            for parameter in net.parameters():
                parameter.steps = getattr(parameter, "steps", 0) + 1
                scale += 0.001 * parameter.steps
            target = torch.arange(BATCH) % 4
            loss = loss_of(model(x * scale), target) * (1 + meters["loss"].update(scale))
            optimizer.zero_grad()
            loss.backward()
            fault.at("backward-done", step)
            optimizer.step()
            fault.at("tail", step)
        if attempt.done:
            log.step(step, loss, x.sum())


torch.manual_seed(50 + rank)
job = taskd.protect(model, optimizer)
with record.Record(out, rank) as log:
    for _ in range(steps // PASS):
        train_pass(job, log)
        committed.update(1.0)  # between two passes
    log.final(net, optimizer)
record.leave(job)

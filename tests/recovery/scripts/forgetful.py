"""Everything that a script keeps from step to step, most of it not given to protect().

forgetful.py OUT STEPS
"""

import random
import sys
from pathlib import Path

import numpy
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.lr_scheduler import ConstantLR, ExponentialLR, SequentialLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

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


class Body(torch.nn.Module):
    """Counters and means in plain attributes, a queue that grows, a buffer that the first forward
    makes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(16, 64)
        self.norm = torch.nn.BatchNorm1d(64, momentum=None)
        self.drop = torch.nn.Dropout(0.1)
        self.last = torch.nn.Linear(64, 32)
        self.calls = 0
        self.mean = torch.zeros(32)
        self.dice = torch.Generator().manual_seed(5 + rank)
        self.register_buffer("queue", torch.zeros(1, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        x = self.drop(torch.relu(self.norm(self.first(x))))
        x = self.last(x) * (1 + 0.01 * self.calls) + 0.1 * torch.rand((), generator=self.dice)
        if not hasattr(self, "late"):
            self.register_buffer("late", torch.zeros(()))
        self.late += 1
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        self.queue = torch.cat([self.queue, x.detach()[:1]])[-8:]
        return x - self.mean + 0.1 * self.queue.mean(0) + 0.001 * self.late


class Scaled(torch.nn.Module):
    """Says what it keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(32, 4)
        self.log = [object()]

    def get_extra_state(self) -> int:
        return len(self.log)

    def set_extra_state(self, state: int) -> None:
        self.log = [object()] * state

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.log.append(object())
        return self.linear(x) * (1 + 0.01 * len(self.log))


class Counting(torch.optim.SGD):
    """Counts in an attribute, and has nothing but a number for each parameter."""

    def __init__(self, parameters, lr: float) -> None:
        super().__init__(parameters, lr=lr)
        self.made = {"steps": 0}

    def step(self, closure=None):
        self.made["steps"] += 1
        for parameter in self.param_groups[0]["params"]:
            kept = self.state[parameter]
            kept["mean"] = 0.5 * kept.get("mean", 0.0) + float(parameter.grad.mean())
            parameter.grad.add_(kept["mean"]).div_(self.made["steps"])
        return super().step(closure)


def main() -> None:
    body, head, scale = Body(), Scaled(), torch.nn.Parameter(torch.ones(()))
    head.linear.bias.requires_grad_(False)  # so that DDP never knows of it
    model = DDP(torch.nn.Sequential(body, head), bucket_cap_mb=0.005)
    optimizer = torch.optim.AdamW([*model.parameters(), scale], lr=0.01)
    # each rank has its own
    own = torch.optim.SGD([torch.nn.Parameter(torch.ones(4))], lr=0.1, momentum=0.9)
    counting = Counting([shift := torch.nn.Parameter(torch.ones(4))], lr=0.1)
    plan = SequentialLR(
        optimizer, [ConstantLR(optimizer, 0.5, 4), ExponentialLR(optimizer, 0.9)], [5]
    )
    average = AveragedModel(head, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
    noise = [random.Random(rank), numpy.random.default_rng(rank), numpy.random.RandomState(rank)]
    running, counted = torch.zeros(()), {"steps": 0}
    bias = own.param_groups[0]["params"][0]
    torch.manual_seed(50 + rank)
    fault.hook(model.module, optimizer)
    job = taskd.protect(
        model=body,
        optimizer=optimizer,
        own=own,
        counting=counting,
        running=running,
        counted=counted,
        history=(history := []),
    )
    with record.Record(out, rank) as log:
        for attempt in job.steps(steps):
            with attempt as step:
                fault.at("begin", step)
                counted["steps"] += 1
                if step == 4:
                    head.linear.bias.requires_grad_(True)
                    body.drop.eval()
                generator = torch.Generator().manual_seed(step * 100 + rank)
                x, y = (
                    torch.randn(8, 16, generator=generator),
                    torch.randint(0, 4, (8,), generator=generator),
                )
                x = (
                    x * (1 + 0.1 * noise[0].gauss(0, 1))
                    + float(noise[1].normal()) * 0.1
                    + noise[2].rand() * 0.1
                )
                loss = torch.nn.functional.cross_entropy(model(x) * scale + bias + shift, y)
                loss = loss * (1 + 0.01 * counted["steps"]) + 0.1 * running
                optimizer.zero_grad()
                own.zero_grad()
                counting.zero_grad()
                scaler.scale(loss).backward()
                if step >= 4:
                    dist.all_reduce(head.linear.bias.grad)
                dist.all_reduce(scale.grad)
                fault.at("mid", step)
                scaler.step(optimizer)
                own.step()
                counting.step()
                scaler.update()
                running.mul_(0.9).add_(0.1 * loss.detach())
                history.append(loss.item())
                average.update_parameters(head)
                plan.step()
                fault.at("tail", step)
                mean = loss.detach().clone()
                dist.all_reduce(mean)
            if attempt.done:
                log.step(
                    step,
                    loss,
                    mean,
                    running,
                    torch.tensor(plan.get_last_lr()),
                    torch.tensor(float(sum(history))),
                )
        log.final(model.module, average, optimizer, own, counting)
    record.leave(job)


main()

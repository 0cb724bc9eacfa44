"""Gradient accumulation under no_sync, a GradScaler, an EMA copy and two optimizers in one job.

rich.py OUT STEPS
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
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
body = torch.nn.Sequential(
    torch.nn.Linear(16, 64),
    torch.nn.BatchNorm1d(64),
    torch.nn.GELU(),
    torch.nn.Dropout(0.1),
    torch.nn.Linear(64, 64),
    torch.nn.GELU(),
)
net = torch.nn.ModuleDict({"body": body, "head": torch.nn.Linear(64, 4)})


class Whole(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net["head"](self.net["body"](x))


model = DDP(Whole(), bucket_cap_mb=0.01)
first = torch.optim.AdamW(net["body"].parameters(), lr=0.01)
second = torch.optim.SGD(net["head"].parameters(), lr=0.1, momentum=0.9, nesterov=True)
schedulers = [
    torch.optim.lr_scheduler.StepLR(first, 3, 0.8),
    torch.optim.lr_scheduler.LinearLR(second, total_iters=10),
]
ema = AveragedModel(model.module, multi_avg_fn=get_ema_multi_avg_fn(0.9))
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=4)
torch.manual_seed(50 + rank)
fault.hook(model.module, first)
job = taskd.protect(
    model=model, optimizers=[first, second], schedulers=schedulers, ema=ema, scaler=scaler
)
with record.Record(out, rank) as log:
    for attempt in job.steps(steps):
        with attempt as step:
            fault.at("begin", step)
            total = torch.zeros(())
            for micro in range(3):
                generator = torch.Generator().manual_seed(step * 100 + micro * 10 + rank)
                x, y = (
                    torch.randn(8, 16, generator=generator),
                    torch.randint(0, 4, (8,), generator=generator),
                )
                if step == 6:
                    x = x * 1e38  # overflows: the scaler skips this step's updates
                if micro < 2:
                    with model.no_sync():
                        loss = torch.nn.functional.cross_entropy(model(x), y) / 3
                        scaler.scale(loss).backward()
                        fault.at("accumulating", step)
                else:
                    loss = torch.nn.functional.cross_entropy(model(x), y) / 3
                    scaler.scale(loss).backward()
                total += loss.detach()
            scaler.step(first)
            fault.at("between-optimizers", step)
            scaler.step(second)
            scaler.update()
            first.zero_grad()
            second.zero_grad()
            fault.at("tail", step)
            dist.all_reduce(total)
            ema.update_parameters(model.module)
            fault.at("ema", step)
            for scheduler in schedulers:
                scheduler.step()
        if attempt.done:
            log.step(
                step,
                total,
                torch.tensor(scaler.get_scale()),
                torch.tensor(schedulers[0].get_last_lr()),
            )
    log.final(model.module, ema, first, second)
record.leave(job)

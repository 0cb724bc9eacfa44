"""Gradients that wait between attempts, in the ways in which scripts leave them.

carried.py OUT STEPS KIND
  micro    one attempt per micro-batch of a loader, under no_sync, an update at each fourth; a
           scaler, an average
  periods  two optimizers, one of which steps at each third attempt only; its gradients gather
  late     gradients are cleared at the beginning of the next attempt, as the usual script does
  zeros    they are set to zero in place, outside of the attempt
  moody    `late`, but from step 9 on nobody clears the gradients before step 12
  forgetful  `micro` with a repair that leaves out gradients
  counting   `micro` with a model that counts its forwards
  parted     `zeros`, where rank 1 takes its time to commit step 1: rank 0 is further
"""

import contextlib
import itertools
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset

import taskd

sys.path.insert(0, str(Path(__file__).parent))
import faults
import record

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
out, steps, kind = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
fault = faults.Injector(out, rank)
torch.manual_seed(3)
body = torch.nn.Sequential(
    torch.nn.Linear(16, 64),
    torch.nn.BatchNorm1d(64),
    torch.nn.GELU(),
    torch.nn.Dropout(0.1),
    torch.nn.Linear(64, 64),
)
head = torch.nn.Linear(64, 4)
net = torch.nn.Sequential(body, head)
model = DDP(net, bucket_cap_mb=0.01, gradient_as_bucket_view=kind == "periods")
first = torch.optim.AdamW(body.parameters(), lr=0.01)
second = torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9)
ema = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9))
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=3)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(first, patience=0)
torch.manual_seed(50 + rank)
fault.hook(net, first)


class Noisy(Dataset):
    """The order of samples comes from a generator of the script's, which goes on from pass to
    pass."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.full((16,), index / 40.0) + 0.1 * torch.randn(16), torch.tensor(index % 4)


if kind == "forgetful":
    from taskd.worker.state.gradients import Gradients

    Gradients.put = lambda *_: None
if kind == "counting":
    net.register_forward_hook(lambda module, _, output: output * (1 + 0.01 * next(numbers)))
    numbers = itertools.count()
if kind in ("forgetful", "counting"):
    kind = "micro"
if kind == "parted":
    from taskd.worker.training.attempts import Attempts

    def commits_late(attempts: Attempts, commit=Attempts._commit) -> bool:
        if rank == 1 and attempts.step == 1 and fault.asked("commit"):
            time.sleep(1)
        return commit(attempts)

    Attempts._commit = commits_late
    kind = "zeros"
order = torch.Generator().manual_seed(9 + rank)
loader = DataLoader(Noisy(), batch_size=8, shuffle=True, generator=order)
job = taskd.protect(
    model=model, optimizers=[first, second], ema=ema, scaler=scaler, scheduler=scheduler
)


def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return torch.nn.functional.cross_entropy(model(x).float(), y)


def passes():
    while job.step < steps:
        yield from job.batches(loader)


def update(*optimizers: torch.optim.Optimizer) -> None:
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()


def clear(*optimizers: torch.optim.Optimizer) -> None:
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=kind != "zeros")


with record.Record(out, rank) as log:
    for attempt in passes():
        with attempt as (step, (x, y)):
            fault.at("begin", step)
            if kind == "late" or (kind == "moody" and not 9 <= step < 12):
                clear(first, second)
            last = step % 4 == 3 if kind == "micro" else True
            with contextlib.nullcontext() if last else model.no_sync():
                loss = loss_of(x, y)
                scaler.scale(loss).backward()
            fault.at("backward-done", step)
            if kind == "periods":
                update(*([first, second] if step % 3 == 2 else [first]))
                clear(*([first, second] if step % 3 == 2 else [first]))
            elif last:
                update(first, second)
                ema.update_parameters(net)
                scheduler.step(float(step % 5))
                if kind == "micro":
                    clear(first, second)
            fault.at("tail", step)
            mean = loss.detach().clone()
            dist.all_reduce(mean)
        if attempt.done:
            log.step(step, loss, mean, x.sum())
        if kind == "zeros":
            clear(first, second)
        fault.at("between", step)
    log.final(net, ema, first, second)
record.leave(job)

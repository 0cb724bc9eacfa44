"""A script that has a SIGTERM handler of its own, and loader workers.

signaled.py OUT STEPS HOW   flag: leaves its loop after the step. exit: leaves from the handler.
                            none: has no handler

Ranks with a handler save in OUT/saved-RANK. A protected run takes its time until OUT/hurry is
there.
"""

import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

import taskd

sys.path.insert(0, str(Path(__file__).parent))
import record

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
out, steps, how = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
signaled = []


def save() -> None:
    time.sleep(0.2 * rank)  # the last one takes longer than the first one's process lives
    (out / f"saved-{rank}").touch()


def on_signal(*_: object) -> None:
    signaled.append(True)
    if how == "exit":
        save()
        sys.exit(0)


if how != "none":
    signal.signal(signal.SIGTERM, on_signal)
torch.manual_seed(7)
net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Dropout(0.1), torch.nn.Linear(64, 8))
model = DDP(net)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
torch.manual_seed(100 + rank)
loader = torch.utils.data.DataLoader(
    torch.randn(8 * steps, 32), batch_size=8, shuffle=True, num_workers=2
)
job = taskd.protect(model=model, optimizer=optimizer)
with record.Record(out, rank) as log:
    for attempt in job.batches(loader):
        with attempt as (step, batch):
            loss = model(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if job.protected and not (out / "hurry").exists():
                time.sleep(0.16)
        if attempt.done:
            log.step(step, loss)
        if signaled:
            save()
            break
    else:
        log.final(net, optimizer)
record.leave(job)

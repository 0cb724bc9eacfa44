"""A job whose replacements wait without using the processor.

waits.py OUT STEPS WHERE

WHERE: "setup" before protect(), "loader" in the loader's first batch, "child" for another program
in the set-up, "none". A replacement waits WAIT seconds, a first process does not.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import taskd

sys.path.insert(0, str(Path(__file__).parent))
import record

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
out, steps, where = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
seconds = float(os.environ["WAIT"]) if os.environ.get("TASKD_INCARNATION", "0") != "0" else 0.0


class Data(torch.utils.data.IterableDataset):
    def __iter__(self):
        if where == "loader":
            time.sleep(seconds)
        for number in range(steps):
            generator = torch.Generator().manual_seed(number * 10 + rank)
            yield torch.randn(8, 32, generator=generator)


if where == "setup":
    time.sleep(seconds)
if where == "child":
    subprocess.run(["sleep", str(seconds)], check=True)
torch.manual_seed(7)
net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
model = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
torch.manual_seed(100 + rank)
job = taskd.protect(model=model, optimizer=optimizer)
with record.Record(out, rank) as log:
    for attempt in job.batches(torch.utils.data.DataLoader(Data(), batch_size=None)):
        with attempt as (step, x):
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if job.protected and not (out / "hurry").exists():
                time.sleep(0.05)
        if attempt.committed:
            log.step(step, loss)
    log.final(net, optimizer)
record.leave(job)

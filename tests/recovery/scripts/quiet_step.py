"""Counts what taskd does in an undisturbed step, so that no load of the machine changes it.

quiet_step.py OUT LAYERS: rank 0 prints the calls of taskd's Python functions in one step, those of
C functions out of them, and the files that they lie in
"""

import collections
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import taskd

FIRST, LAST = 20, 120  # at step 63 the ranks compare their state
layers = int(sys.argv[2])

torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
body = [m for _ in range(layers) for m in (torch.nn.Linear(64, 64), torch.nn.ReLU())]
model = DistributedDataParallel(torch.nn.Sequential(*body, torch.nn.Linear(64, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
data = TensorDataset(torch.randn(4096, 64), torch.randn(4096, 1))
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data))
job = taskd.protect(model=model, optimizer=optimizer, scheduler=scheduler)
assert job.protected


def counting():
    """What counts, and a function for the numbers: in a closure, where taskd does not record
    them."""
    python: collections.Counter = collections.Counter()
    native = 0

    def count(frame, event, _):
        nonlocal native
        file = frame.f_code.co_filename
        if event in ("call", "c_call") and "/taskd/" in file:
            if event == "call":
                python[file] += 1
            else:
                native += 1

    return count, lambda: (python, native)


count, counted = counting()
# a variable that the loop carries on
number = 0
for attempt in job.batches(loader):
    with attempt as (_, (inputs, wanted)):
        loss = torch.nn.functional.mse_loss(model(inputs), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
    number += 1
    if number == FIRST:
        sys.setprofile(count)
    if number == LAST:
        sys.setprofile(None)

if dist.get_rank() == 0:
    steps, (python, native) = LAST - FIRST, counted()
    files = sum(calls >= steps for calls in python.values())
    calls = sum(python.values()) / steps, native / steps
    print(f"in a step: python {calls[0]:.0f} native {calls[1]:.0f} files {files}")
dist.destroy_process_group()

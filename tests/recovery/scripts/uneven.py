"""A rank begins other collectives than the others, or ranks do so for good reasons.

uneven.py OUT STEPS KIND [AT NAP]: the step, and seconds for each step
"""

import contextlib
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import taskd

sys.path.insert(0, str(Path(__file__).parent))
import faults

out, steps, kind = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
odd_step, nap = (int(sys.argv[4]), float(sys.argv[5])) if len(sys.argv) > 4 else (9, 0.0)

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters())
side = dist.new_group()
torch.manual_seed(rank)
fault = faults.Injector(out, rank)
job = taskd.protect(model=model, optimizer=optimizer)
assert job.protected
thread = None


def checkpoint():
    """As an asynchronous checkpoint does: each rank when it comes to it."""
    time.sleep(0.05 * rank)
    dist.all_reduce(torch.ones(1), group=side)


for attempt in job.steps(steps):
    with attempt as step:
        fault.at("begin", step)
        odd = rank == 1 and step == odd_step
        inside = odd and kind == "accumulates"
        with model.no_sync() if inside else contextlib.nullcontext():
            loss = model(torch.randn(8, 8)).square().mean()
            optimizer.zero_grad()
            if not (odd and kind == "skips"):
                loss.backward()
        if odd and kind == "branches":
            dist.all_reduce(torch.ones(9), async_op=True)  # as large as the gradients
        if kind == "threads":
            if thread is not None:
                thread.join()
            thread = threading.Thread(target=checkpoint)
            thread.start()
        if kind == "monitors":
            dist.monitored_barrier()
        if kind == "sends" and rank < 2:
            (dist.send if rank == 0 else dist.recv)(torch.ones(1), 1 - rank)
        time.sleep(nap)
        optimizer.step()
    if attempt.done:  # else it was cut, and is repeated
        print(f"rank {rank} step {step} loss {loss.item()!r}\n", end="", flush=True)
    if odd and kind in ("breaks", "ends"):
        break
if kind == "breaks":
    for attempt in job.steps(steps + 4):
        with attempt as step:
            model(torch.randn(8, 8)).square().mean().backward()
            optimizer.step()
        if attempt.done:
            print(f"rank {rank} step {step} loss of the other loop\n", end="", flush=True)
if thread is not None:
    thread.join()
if not (odd and kind == "ends"):
    dist.barrier()
dist.destroy_process_group()

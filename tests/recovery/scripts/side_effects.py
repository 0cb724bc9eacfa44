"""A job whose set-up finds what its own first run has left.

side_effects.py OUT STEPS KIND

KIND, what rank 0 does in its set-up: "makedirs" makes a directory, "notempty" refuses one that is
not empty, "message" leaves by sys.exit() if it is there, "lock" locks a file that a
process of its own keeps locked, "memory" makes shared memory by name, which all others attach to,
"folder" makes a directory that has the time in its name, "process" the process's id; "none"
nothing. With "aware-" before it, a replacement leaves out what is done already.
"""

import fcntl
import os
import subprocess
import sys
import tempfile
import time
import uuid
from datetime import datetime
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import torch
import torch.distributed as dist

import taskd

sys.path.insert(0, str(Path(__file__).parent))
import record

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
out, steps, kind = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
results, factor = out / "results", 7
done = os.environ.get("TASKD_INCARNATION", "0") != "0" and kind.startswith("aware-")
kind = kind.removeprefix("aware-")

if rank == 0 and not done:
    if kind == "makedirs":
        os.makedirs(results)
    elif kind == "notempty":
        if results.is_dir() and os.listdir(results):
            raise ValueError(f"Output directory ({results}) already exists and is not empty.")
        results.mkdir(exist_ok=True)
        (results / "first").touch()
    elif kind in ("folder", "process"):
        name = f"{datetime.now():%H-%M-%S-%f}-{uuid.uuid4()}" if kind == "folder" else os.getpid()
        runs = out / "runs" / str(name)
        os.makedirs(runs / "checkpoints")
        (out / "others").mkdir(exist_ok=True)
        tempfile.mkdtemp("", "cache", out)
        os.chdir(runs)
    elif kind == "message":
        if results.exists():
            sys.exit("the results are there already")
        results.mkdir()
    elif kind == "lock":
        file = open(out / "lock", "w")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        clean = {k: v for k, v in os.environ.items() if k != "TASKD_SHARED_DIR"}
        holder = subprocess.Popen(
            ["sleep", "30"], start_new_session=True, env=clean, pass_fds=[file.fileno()]
        )
        (out / "holder").write_text(str(holder.pid))
if kind == "memory":
    name, make = os.environ["MEMORY"], rank == 0 and not done
    if make:
        memory = SharedMemory(name, create=True, size=64)
        memory.buf[0] = factor
    dist.barrier()
    if not make:
        memory = SharedMemory(name)
    factor = memory.buf[0]

torch.manual_seed(7)
net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
model = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
torch.manual_seed(100 + rank)
job = taskd.protect(model=model, optimizer=optimizer)
with record.Record(out, rank) as log:
    for attempt in job.steps(steps):
        with attempt as step:
            if kind == "memory":
                factor = memory.buf[0]
            loss = model(torch.randn(8, 32)).square().mean() * factor
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if kind == "memory":  # what rank 0 publishes is read by all in the next step
                dist.barrier()
                if rank == 0:
                    memory.buf[0] = 7
                dist.barrier()
            if job.protected and not (out / "hurry").exists():
                time.sleep(0.05)
        if attempt.committed:
            log.step(step, loss)
    log.final(net, optimizer)
if kind == "memory":
    dist.barrier()
    memory.close()
    if rank == 0:
        memory.unlink()
record.leave(job)

"""The training script of the checks, on the device of place.py.

job.py OUT STEPS WIDTH [KIND] [BACKEND] [MILLISECONDS]

KIND: ddp, sharded, graphs. BACKEND: a field of Place. MILLISECONDS: that the device has more to do
in each step than the host. It looks at nothing that the device computes until the end. KILLS, in
the environment: "rank:step:point", joined by commas. Without taskd's launcher it is unprotected.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import place
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import taskd

out, steps, width = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
given = dict(zip(("kind", "backend", "more"), sys.argv[4:], strict=False))
kind, backend = given.get("kind", "ddp"), given.get("backend", "backend")
more = float(given.get("more", "0"))
here = place.use()
dist.init_process_group(getattr(here, backend))
rank = dist.get_rank()
due = set(filter(None, os.environ.get("KILLS", "").split(",")))


def at(point: str, step: int) -> None:
    name = f"{rank}:{step}:{point}"
    mark = out / f"struck-{name.replace(':', '-')}"
    if name in due and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


torch.manual_seed(3)
layers = [torch.nn.Linear(width, width) for _ in range(4)]
net = torch.nn.Sequential(*(m for layer in layers for m in (layer, torch.nn.Tanh()))).to(here.kind)
if kind == "sharded":
    model = fully_shard(net, mesh=init_device_mesh(here.kind, (dist.get_world_size(),)))
else:
    model = DistributedDataParallel(net)
sgd = kind == "graphs"
optimizer = (
    torch.optim.SGD(model.parameters(), lr=0.01)
    if sgd
    else torch.optim.AdamW(model.parameters(), lr=0.001)
)
torch.manual_seed(50 + rank)
data = [torch.randn(16, width).to(here.kind) for _ in range(8)]
job = taskd.protect(model=model, optimizer=optimizer)
if place.CPU:
    here.seconds(more)
graph, times = None, []
for attempt in job.steps(steps):
    with attempt as step:
        began = time.monotonic()
        at("begin", step)
        if not place.CPU and more:
            here.seconds(more)
        optimizer.zero_grad(set_to_none=not sgd)
        loss = model(data[step % 8]).square().mean()
        loss.backward()
        at("backward", step)
        if not sgd:
            optimizer.step()
        elif graph is None:
            graph = torch.cuda.CUDAGraph()
            with contextlib.nullcontext() if place.CPU else torch.cuda.graph(graph):
                if place.CPU:
                    graph.capture_begin()
                optimizer.step()
                if place.CPU:
                    graph.capture_end()
        if graph is not None:
            graph.replay()
        at("tail", step)
    times.append(time.monotonic() - began)
    at("between", step)
    if os.environ.get("KILL_AT"):  # "rank:step:seconds": at a moment of its own
        who, when, seconds = os.environ["KILL_AT"].split(":")
        mark = out / "struck-at"
        if (int(who), int(when)) == (rank, step) and not mark.exists():
            mark.touch()
            os.fork() or (time.sleep(float(seconds)), os.kill(os.getppid(), 9), os._exit(0))
here.module.synchronize()
digest = hashlib.sha256()
for value in net.state_dict().values():
    local = value.to_local() if hasattr(value, "to_local") else value
    digest.update(local.detach().cpu().numpy().tobytes())
half = sorted(times[len(times) // 2 :])
step_ms = 1e3 * half[len(half) // 2]
said = {"digest": digest.hexdigest(), "protected": job.protected, "step_ms": step_ms}
(out / f"rank-{rank}.json").write_text(json.dumps(said))
dist.barrier()
if not job.protected:
    os._exit(0)

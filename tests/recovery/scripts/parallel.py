"""A small job for each way of training in parallel, 4 ranks.

parallel.py OUT STEPS KIND   fsdp | hsdp | fsdp-mixed | fsdp-accumulate | fsdp-stay | tp | tpdp |
                             pp | pp-gpipe | subgroups | late-group
Faults come from the environment, see faults.py. A protected run takes its time until OUT/hurry is
there.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel as DDP

import taskd

sys.path.insert(0, str(Path(__file__).parent))
import faults
import record


class Point(nn.Module):
    """A place in the forward and in the backward at which faults strike."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        fault.at("forward", current[0])
        if x.requires_grad:
            x.register_hook(lambda _: fault.at("backward", current[0]))
        return x


def block(width: int = 64, wide: int = 128) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, wide), nn.GELU(), nn.Linear(wide, width), nn.Dropout(0.1))


def model_of(kind: str) -> nn.Module:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    if kind.startswith("pp"):
        return nn.Sequential(nn.Linear(64, 64), nn.GELU(), Point(), nn.Dropout(0.1))
    net = nn.Sequential(block(), Point(), block(), block(64, 96))
    if kind in ("fsdp", "hsdp", "fsdp-mixed", "fsdp-accumulate", "fsdp-stay"):
        names = {"mesh_dim_names": ("replicate", "shard")}
        mesh = init_device_mesh("cpu", (2, 2), **names) if kind == "hsdp" else None
        mesh = mesh or init_device_mesh("cpu", (4,))
        more = {"reshard_after_forward": kind != "fsdp-stay"}
        if kind == "fsdp-mixed":
            more["mp_policy"] = MixedPrecisionPolicy(
                param_dtype=torch.bfloat16, reduce_dtype=torch.float32
            )
        for part in (net[0], net[2], net[3]):
            fully_shard(part, mesh=mesh, **more)
        return fully_shard(net, mesh=mesh, **more)
    if kind in ("tp", "tpdp"):
        shape = (1, 4) if kind == "tp" else (2, 2)
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp"))
        plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        for part in (net[0], net[2], net[3]):
            parallelize_module(part, mesh["tp"], plan)
        if kind == "tpdp":
            for part in (net[0], net[2], net[3]):
                fully_shard(part, mesh=mesh["dp"])
            fully_shard(net, mesh=mesh["dp"])
        return net
    return net


dist.init_process_group("gloo")
rank = dist.get_rank()
out, steps, kind = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
torch.set_num_threads(1)
fault, current = faults.Injector(out, rank), [-1]
torch.manual_seed(7)
if kind.startswith("pp"):
    torch.manual_seed(7 + rank)
net = model_of(kind)
model = net
extra: list = []
if kind == "subgroups":  # data parallel in two halves, which meet now and then
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    extra = [dist.new_group([0, 1, 2, 3]), dist.new_group([1, 3])]
    model = DDP(net, process_group=halves[rank // 2], bucket_cap_mb=0.05)
elif kind == "late-group":
    model = DDP(net)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
if kind.startswith("pp"):
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    stage = PipelineStage(net, rank, 4, torch.device("cpu"))
    schedule = (ScheduleGPipe if kind == "pp-gpipe" else Schedule1F1B)(
        stage, 4, loss_fn=lambda found, wanted: (found - wanted).square().mean()
    )
# ranks of one tensor parallel group see the same batch
data = {"tp": 0, "tpdp": rank // 2, "pp": 0, "pp-gpipe": 0}.get(kind, rank)
torch.manual_seed(100 + data)
fault.at("setup", int(os.environ.get("TASKD_INCARNATION", "0")))
job = taskd.protect(model=model, optimizer=optimizer)


def train(step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(step * 1000 + data)
    x = torch.randn(8, 64, generator=generator)
    if kind.startswith("pp"):
        losses: list[torch.Tensor] = []
        schedule.step(
            *([x] if rank == 0 else []),
            **({"target": x, "losses": losses} if rank == 3 else {}),
        )
        return sum(losses, torch.zeros(()))
    for part in (0, 1) if kind == "fsdp-accumulate" else (0,):
        if kind == "fsdp-accumulate":
            model.set_requires_gradient_sync(part == 1)
        loss = model(x + part).float().square().mean()
        loss.backward()
    return loss.detach()


with record.Record(out, rank) as log:
    for attempt in job.steps(steps):
        with attempt as step:
            current[0] = step
            fault.at("begin", step)
            optimizer.zero_grad()
            loss = train(step)
            fault.at("reduced", step)
            optimizer.step()
            fault.at("tail", step)
            values = [loss]
            for group in extra:
                if rank in dist.get_process_group_ranks(group):
                    values.append(loss.clone())
                    dist.all_reduce(values[-1], group=group)
            fault.at("end", step)
            if job.protected and not (out / "hurry").exists():
                time.sleep(0.05)
        if attempt.done:
            log.step(step, *values)
        fault.at("between", step)
        if kind == "late-group" and step == 2:
            extra.append(dist.new_group([1, 2, 3]))
    shards = nn.Module()
    shards.parts = nn.ParameterList(
        nn.Parameter(getattr(p, "_local_tensor", p).detach().clone()) for p in net.parameters()
    )
    log.final(shards)
record.leave(job)

"""More ways of training in parallel, and combinations of them; see parallel.py.

ways.py OUT STEPS KIND   pp-interleaved | pp-bfs | pp-zb | pp-zbv | pp-dual | pp-ddp | pp-fsdp |
                         pp-interleaved-fsdp | cube | sp | spdp | fsdp-offload |
                         static | static-unused | static-uneven | static-nested | static-view |
                         ddp-shuffled | powersgd | post-local | zero | zero-view
Faults come from the environment, see faults.py.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

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


class Counting(nn.Module):
    """Its result depends on how often it was called, also only to learn shapes from it. (A batch
    norm would do that too, but torch shows it memory that nobody has written.)"""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))
        self.times = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.times += 1
        return x * (1 + self.calls / 256 + self.times / 512)


def block(width: int = 64, wide: int = 128) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, wide), nn.GELU(), nn.Linear(wide, width), nn.Dropout(0.1))


def net_of_blocks() -> nn.Sequential:
    return nn.Sequential(block(), Point(), block(), block(64, 96))


class Nested(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        from torch.utils.checkpoint import checkpoint

        for _ in range(2):
            x = checkpoint(self.net[0], x, use_reentrant=True)
        return self.net(x.requires_grad_() if not x.requires_grad else x)


class Shuffled(nn.Module):
    """Gradients become ready in another order at each step."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        blocks = [self.net[0], self.net[2], self.net[3]]
        turn = current[0] % 3
        for part in (*blocks[turn:], self.net[1], *blocks[:turn]):
            x = part(x)
        return x


def squares(found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return (found - wanted).square().mean()


dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
out, steps, kind = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
torch.set_num_threads(1)
fault, current = faults.Injector(out, rank), [-1]
protected: dict[str, Any] = {}
data = rank  # ranks with the same number see the same batches


def batch(step: int, rows: int = 8) -> torch.Tensor:
    generator = torch.Generator().manual_seed(step * 1000 + data)
    return torch.randn(rows, 64, generator=generator)


def alone(model: nn.Module) -> Any:
    """Train `model` without a pipeline."""

    def train(step: int) -> torch.Tensor:
        loss = model(batch(step)).float().square().mean()
        loss.backward()
        return loss.detach()

    return train


def pipeline(stages: dict[int, nn.Module], total: int, name: str, group: Any = None) -> Any:
    """Train the `stages` of this rank."""
    from torch.distributed import pipelining
    from torch.distributed.pipelining import PipelineStage

    made = [
        PipelineStage(module, number, total, torch.device("cpu"), group=group)
        for number, module in sorted(stages.items())
    ]
    cls = getattr(pipelining, name, None) or getattr(pipelining.schedules, name)
    several = issubclass(cls, pipelining.schedules.PipelineScheduleMulti)
    schedule = cls(made if several else made[0], 8, loss_fn=squares)

    def train(step: int) -> torch.Tensor:
        losses: list[torch.Tensor] = []
        x = batch(step, 16)
        schedule.step(
            *([x] if 0 in stages else []),
            **({"target": x, "losses": losses} if total - 1 in stages else {}),
        )
        return sum(losses, torch.zeros(()))

    return train


def stage(number: int) -> nn.Sequential:
    torch.manual_seed(7 + number)
    return nn.Sequential(nn.Linear(64, 64), nn.GELU(), Point(), Counting(), nn.Dropout(0.1))


def tensor_parallel(net: nn.Sequential, mesh: Any, sequence: bool = False) -> nn.Sequential:
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    for part in net:
        if not isinstance(part, nn.Sequential):
            continue
        if sequence:  # norm on a part of the sequence, linear layers on all of it
            plan = {
                "0": SequenceParallel(sequence_dim=0),
                "1": PrepareModuleInput(
                    input_layouts=(Shard(0),), desired_input_layouts=(Shard(0),)
                ),
                "1.0": ColwiseParallel(input_layouts=Shard(0)),
                "1.2": RowwiseParallel(output_layouts=Shard(0)),
            }
        else:
            plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        parallelize_module(part, mesh, plan)
    return net


LOOPED = {
    "pp-interleaved": "ScheduleInterleaved1F1B",
    "pp-bfs": "ScheduleLoopedBFS",
    "pp-zb": "ScheduleInterleavedZeroBubble",
    "pp-zbv": "ScheduleZBVZeroBubble",
    "pp-dual": "ScheduleDualPipeV",
}
parts: list[nn.Module] = []
optimizers: list[torch.optim.Optimizer] = []
torch.manual_seed(7)
if kind in LOOPED:
    second = 2 * world - 1 - rank if kind in ("pp-zbv", "pp-dual") else rank + world
    stages: dict[int, nn.Module] = {n: stage(n) for n in (rank, second)}
    parts, data = list(stages.values()), 0
    train = pipeline(stages, 2 * world, LOOPED[kind])
elif kind in ("pp-ddp", "pp-fsdp", "pp-interleaved-fsdp"):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
    place, data = mesh["pp"].get_local_rank(), mesh["dp"].get_local_rank()
    numbers = (place, place + 2) if "interleaved" in kind else (place,)
    stages = {}
    for number in numbers:
        part = stage(number)
        if kind == "pp-ddp":
            part = DDP(part, process_group=mesh["dp"].get_group(), bucket_cap_mb=0.01)
        else:
            from torch.distributed.fsdp import fully_shard

            fully_shard(part, mesh=mesh["dp"])
        stages[number] = part
    parts = list(stages.values())
    name = "ScheduleInterleaved1F1B" if "interleaved" in kind else "Schedule1F1B"
    train = pipeline(stages, 2 * len(numbers), name, mesh["pp"].get_group())
elif kind == "cube":  # 8 ranks
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("pp", "dp", "tp"))
    place, data = mesh["pp"].get_local_rank(), mesh["dp"].get_local_rank()
    torch.manual_seed(7 + place)
    net = tensor_parallel(net_of_blocks(), mesh["tp"])
    for part in (net[0], net[2], net[3]):
        fully_shard(part, mesh=mesh["dp"])
    parts = [fully_shard(net, mesh=mesh["dp"])]
    train = pipeline({place: net}, 2, "Schedule1F1B", mesh["pp"].get_group())
elif kind in ("sp", "spdp"):
    from torch.distributed.fsdp import fully_shard

    shape = (1, 4) if kind == "sp" else (2, 2)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp"))
    data = mesh["dp"].get_local_rank()
    net = nn.Sequential(
        *(nn.Sequential(nn.LayerNorm(64), block()) for _ in range(2)), nn.Identity()
    )
    net = nn.Sequential(net[0], Point(), net[1])
    tensor_parallel(net, mesh["tp"], sequence=True)
    if kind == "spdp":
        fully_shard(net, mesh=mesh["dp"])
    parts = [net]

    def train(step: int) -> torch.Tensor:
        x = batch(step).chunk(mesh["tp"].size())[mesh["tp"].get_local_rank()]
        loss = net(x).square().mean()
        loss.backward()
        return loss.detach()
elif kind == "fsdp-offload":
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

    net = net_of_blocks()
    for part in (net[0], net[2], net[3]):
        fully_shard(part, offload_policy=CPUOffloadPolicy(pin_memory=False))
    parts = [fully_shard(net, offload_policy=CPUOffloadPolicy(pin_memory=False))]
    train = alone(parts[0])
else:
    net = net_of_blocks()
    more: dict[str, Any] = {}
    if kind.startswith("static"):
        more["static_graph"] = True
        if kind == "static-view":
            more["gradient_as_bucket_view"] = True
    if kind == "ddp-shuffled":
        net = Shuffled(net)
    elif kind == "static-uneven" and rank % 2:  # some parameters are used on half of the ranks
        net.forward = lambda x: net[3](net[1](net[0](x)))
    if kind == "static-unused":
        net[3].register_parameter("unused", nn.Parameter(torch.ones(100)))
    elif kind == "static-nested":  # a backward in a backward, two for one block
        net = Nested(net)
    # PowerSGD communicates in callbacks, whose order differs between ranks if there are several
    # buckets; on gloo a plain job does not survive that
    model = DDP(net, bucket_cap_mb=25 if kind == "powersgd" else 0.05, **more)
    if kind == "powersgd":
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=2, start_powerSGD_iter=3, random_seed=5
        )
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif kind == "post-local":
        from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
            PostLocalSGDState,
            post_localSGD_hook,
        )

        halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        state = PostLocalSGDState(None, halves[rank // 2], start_localSGD_iter=4)
        model.register_comm_hook(state, post_localSGD_hook)
        from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

        protected["averager"] = PeriodicModelAverager(period=3, warmup_steps=4)
    parts, train = [model], alone(model)
    if kind.startswith("zero"):
        from torch.distributed.optim import ZeroRedundancyOptimizer

        optimizers = [
            ZeroRedundancyOptimizer(
                net.parameters(),
                torch.optim.AdamW,
                parameters_as_bucket_view=kind == "zero-view",
                lr=1e-2,
            )
        ]
        protected["scheduler"] = torch.optim.lr_scheduler.StepLR(optimizers[0], 3, 0.8)
optimizers = optimizers or [torch.optim.AdamW(part.parameters(), lr=1e-2) for part in parts]
torch.manual_seed(100 + data)
fault.at("setup", int(os.environ.get("TASKD_INCARNATION", "0")))
job = taskd.protect(model=parts, optimizer=optimizers, **protected)
with record.Record(out, rank) as log:
    for attempt in job.steps(steps):
        with attempt as step:
            current[0] = step
            fault.at("begin", step)
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss = train(step)
            fault.at("reduced", step)
            for optimizer in optimizers:
                optimizer.step()
            if "averager" in protected:
                protected["averager"].average_parameters(parts[0].parameters())
            if "scheduler" in protected:
                protected["scheduler"].step()
            fault.at("tail", step)
            total = loss.clone()
            dist.all_reduce(total)
            fault.at("end", step)
            if job.protected and not (out / "hurry").exists():
                time.sleep(0.05)
        if attempt.done:
            log.step(step, loss, total)
        fault.at("between", step)
    final = nn.Module()
    final.parts = nn.ParameterList(
        nn.Parameter(getattr(t, "_local_tensor", t).detach().clone(), requires_grad=False)
        for part in parts
        for t in (*part.parameters(), *part.buffers())
    )
    log.final(final)
record.leave(job)

"""Training on the late device: the host runs ahead of it, and looks at nothing that it computes.

late_device.py OUT STEPS KIND [MICROSECONDS]: of each operation of the device

KIND: ddp; accumulates: over two attempts; zero: an optimizer whose ranks send what they have
updated; metrics: objects gathered, and a sum over the ranks behind the update, from which the next
step computes; sharded: FSDP2; groups: a collective of another group, before and behind the
gradients'; graphs: the update is captured once, and replayed; forming: DDP's constructor still
sends the first rank's parameters when the job forms; encoder: before each update a second network
follows the first one, as a momentum encoder does; batch: the step changes its batch in place.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

import taskd

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[3]))
import faults
import record

from tests import late

torch.set_num_threads(1)
device = late.use()
dist.init_process_group("late")
rank = dist.get_rank()
out, steps, kind = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
fault = faults.Injector(out, rank)
torch.manual_seed(3 + rank if kind == "forming" else 3)
device.set_delay(150_000 if kind == "forming" else 0)
net = torch.nn.Sequential(
    *(m for _ in range(3) for m in (torch.nn.Linear(32, 32), torch.nn.Tanh())),
    torch.nn.Linear(32, 2),
).to("late")
if kind == "sharded":
    model = fully_shard(net, mesh=init_device_mesh("late", (dist.get_world_size(),)))
else:
    model = DDP(net)
if kind == "zero":
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01)
elif kind == "graphs":
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
else:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
second = torch.nn.Linear(32, 2).to("late").requires_grad_(False)
torch.manual_seed(50 + rank)
if kind == "encoder":
    job = taskd.protect(model=model, optimizer=optimizer, second=second)
else:
    job = taskd.protect(model=model, optimizer=optimizer)
device.set_delay(int(sys.argv[4]) if len(sys.argv) > 4 else 500)
mean = torch.zeros(1, device="late")
side = dist.new_group() if kind == "groups" else None
graph = None
data = torch.randn(8 * steps, 32, generator=torch.Generator().manual_seed(rank))
loader = DataLoader(data, 8, collate_fn=lambda rows: torch.stack(rows).to("late"))


def update() -> None:
    """The gradients stay where they are."""
    global graph
    if graph is None:
        for parameter in net.parameters():
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        graph = late.Graph()
        graph.capture_begin()
        optimizer.step()
        graph.capture_end()
    graph.replay()


with record.Record(out, rank) as log:
    for attempt in job.batches(loader) if kind == "batch" else job.steps(steps):
        step = attempt.step
        with attempt as given:
            fault.at("begin", step)
            if kind == "graphs":
                optimizer.zero_grad(set_to_none=False)
            if kind == "batch":  # that the loader has put on the device
                x = given[1].mul_(0.5).add_(mean)
            else:
                x = torch.randn(8, 32).to("late") + mean
            loss = model(x).square().mean()
            if kind == "encoder":
                with torch.no_grad():
                    second.weight.mul_(0.9).add_(net[-1].weight, alpha=0.1)
                loss = loss + 0.1 * (model(x) * second(x)).mean()
            if kind == "groups":
                dist.all_reduce(mean, group=side)
            fault.at("forward", step)
            loss.backward()
            fault.at("backward", step)
            if kind == "graphs":
                update()
            elif kind != "accumulates" or step % 2:
                optimizer.step()
                optimizer.zero_grad()
            if kind in ("metrics", "groups"):
                mean = loss.detach().reshape(1).clone()
                dist.all_reduce(mean, group=side)
            if kind == "metrics":
                found = [None, None]
                dist.all_gather_object(found, step)
                assert found == [step, step], found
            fault.at("tail", step)
        fault.at("between", step)  # nobody has looked at the loss
    log.step(step, loss.detach().cpu())
    log.final(net) if kind in ("sharded", "zero") else log.final(net, optimizer)
dist.barrier()
record.leave(job)

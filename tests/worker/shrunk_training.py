"""How ranks train in a shrunk job, see test_shrunk.py; each function runs in every rank."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from taskd.worker.communication import buckets
from tests.worker.shrinking import LIMIT, Rank, net, refused, value


def loss(model: nn.Module, step: int, share: int) -> torch.Tensor:
    made = torch.Generator().manual_seed(1000 * step + share)
    return model(torch.randn(4, 5, generator=made)).square().sum()


def alone(job: Rank, name: str) -> Any:
    """A backend of the present ranks that no group has."""
    store = dist.TCPStore("127.0.0.1", job.port, is_master=False, wait_for_workers=False)
    present = job.communicators.present
    prefix = dist.PrefixStore(name, store)
    at, limit = present.index(job.rank), timedelta(seconds=LIMIT)
    return dist.ProcessGroupGloo(prefix, at, len(present), limit)


def ddp(job: Rank) -> None:
    """Bit for bit what is computed by hand: the shares in their order, divided by four."""
    order = [3, 2, 1, 0]
    model, by_hand = DistributedDataParallel(net()), net()
    parameters = list(by_hand.parameters())
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9) for m in (model, by_hand)]
    step = 0
    for phase, away in enumerate([(), (3,), (1, 3), (0,), (0, 1), ()]):
        if job.rebuild(*away):
            buckets.rebuild(model, order)
            reference = alone(job, f"phase {phase}")
            for _ in range(3):
                for share in job.shares:
                    last = share == job.shares[-1]
                    with nullcontext() if last else model.no_sync():
                        loss(model, step, share).backward()
                    loss(by_hand, step, share).backward()
                flat = torch.cat([parameters[i].grad.flatten() for i in order]) / 4
                reference.allreduce([flat]).wait()
                parts = flat.split([parameters[i].numel() for i in order])
                for i, part in zip(order, parts, strict=True):
                    parameters[i].grad.copy_(part.view_as(parameters[i]))
                for made, other in zip(model.parameters(), parameters, strict=True):
                    assert torch.equal(made.grad, other.grad), (away, step)
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad()
                step += 1
        step = 3 * (phase + 1)
        if not away and phase:
            break
        job.rebuild()
        for m, optimizer in zip((model, by_hand), optimizers, strict=True):
            for parameter in m.parameters():
                dist.broadcast(parameter.data, 2)  # it is never away
                momentum = optimizer.state[parameter]["momentum_buffer"]
                dist.broadcast(momentum, 2)
    for made, other in zip(model.parameters(), parameters, strict=True):
        assert torch.equal(made, other)


def buckets_of_their_own(job: Rank) -> None:
    """DDP lays its buckets out by the order of the group's first rank, which is away."""
    model = DistributedDataParallel(net(), bucket_cap_mb=1e-5)
    if job.rebuild(0):
        buckets.rebuild(model, None)
        for step in range(3):
            loss(model, step, job.rank).backward()
        assert model._get_ddp_logging_data()["has_rebuilt_buckets"]
        gradient = next(model.parameters()).grad
        lowest, highest = gradient.clone(), gradient.clone()
        dist.all_reduce(lowest, dist.ReduceOp.MIN)
        dist.all_reduce(highest, dist.ReduceOp.MAX)
        assert torch.equal(lowest, highest)
        refused(lambda: DistributedDataParallel(net()), "all_gather over", "[0] are away")


def buffers(job: Rank) -> None:
    """Those of rank 0, which its stand-in has in place, reach everyone; also over a group whose
    first rank is another one."""
    group = dist.new_group([1, 2, 3])
    models = [nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)) for _ in range(2)]
    groups = [None, group if job.rank else dist.new_group([0], use_local_synchronization=True)]
    ddps = [
        DistributedDataParallel(m, process_group=g) for m, g in zip(models, groups, strict=True)
    ]
    # (away, what each of the two DDPs must have)
    for away, expected in ((0,), (2, 2)), ((1,), (1, 3)), ((0, 1), (3, 3)), ((), (1, 2)):
        if not job.rebuild(*away):
            continue
        for model in ddps:
            buckets.rebuild(model, None)
            norm = model.module[1]
            norm.eval()
            norm.running_mean.fill_(job.rank + 1.0)
            model(torch.ones(2, 2))
        found = [int(m.module[1].running_mean[0]) for m in ddps[: 1 + bool(job.rank)]]
        assert found == list(expected[: len(found)]), (away, found)


def tensors_on_a_mesh(job: Rank) -> None:
    """DP x TP: what DTensor reduces over lanes is right, what it gathers over them is refused."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    if not job.rebuild(0, 1):
        return
    for kind, divisor in (("sum", 1), ("avg", 2)):
        made = DTensor.from_local(value(job), mesh, [Partial(kind), Shard(0)])
        found = made.redistribute(mesh, [Replicate(), Shard(0)]).to_local()
        assert torch.equal(found, value(job) / divisor)
    sharded = DTensor.from_local(value(job), mesh, [Replicate(), Shard(0)])
    assert sharded.full_tensor().tolist() == [3.0, 6.0, 9.0, 4.0, 8.0, 12.0]
    assert sharded.sum().full_tensor().item() == 42.0
    across = DTensor.from_local(value(job), mesh, [Shard(0), Replicate()])
    refused(lambda: across.full_tensor(), "ranks [0] are away" if job.rank == 2 else "[1] are away")


def hsdp(job: Rank) -> None:
    """Three lanes of two shards, of which one leaves: bit for bit what is computed by hand."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (3, 2), mesh_dim_names=("replicate", "shard"))
    model, by_hand = net(), net()
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    # (lanes that leave, the lane that computes their shares)
    for step, (gone, stand_in) in enumerate([((), 0), ((0,), 1), ((2,), 0), ((0, 2), 1), ((), 0)]):
        if not job.rebuild(*(r for lane in gone for r in (2 * lane, 2 * lane + 1))):
            continue
        lane, shard = divmod(job.rank, 2)
        lanes = {g: [g] for g in range(3) if g not in gone}
        lanes[stand_in] = sorted({stand_in, *gone})
        for share in lanes[lane]:
            model.set_requires_all_reduce(share == lanes[lane][-1])
            loss(model, step, 2 * share + shard).backward()
        sums = [by_share(by_hand, step, shares) for shares in lanes.values()]
        for i, parameter in enumerate(model.parameters()):
            total = sums[0][i]
            for other in sums[1:]:
                total = total + other[i]
            mine, found = (total / 3).chunk(2)[shard], parameter.grad.to_local()
            # in which order gloo adds three is its own affair
            same = torch.equal if len(sums) < 3 else torch.allclose
            assert same(found, mine), (step, i)
        for parameter in model.parameters():
            parameter.grad = None


def by_share(model: nn.Module, step: int, shares: list[int]) -> list[torch.Tensor]:
    """What one lane has before it is reduced with others."""
    found: list[torch.Tensor] = []
    for share in shares:
        halves = [
            torch.autograd.grad(loss(model, step, 2 * share + shard), list(model.parameters()))
            for shard in (0, 1)
        ]
        both = [(a + b) / 2 for a, b in zip(*halves, strict=True)]
        found = [a + b for a, b in zip(found, both, strict=True)] if found else both
    return found

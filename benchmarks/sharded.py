"""The training of benchmarks/parallel.py: the same kind of model in each way of training in
parallel, with steps of some 20 ms on 4 ranks.

taskd run --nproc_per_node 4 benchmarks/sharded.py --out DIR --kind ddp|fsdp|hsdp|tpdp|pp
"""

from __future__ import annotations

import argparse
import os

import toy

KINDS = ("ddp", "fsdp", "hsdp", "tpdp", "pp")
WIDTH, BATCH = 256, 128
MICRO_BATCHES = 4


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--kind", choices=KINDS, required=True)
    parser.add_argument("--steps", type=int, default=toy.CAPACITY // 2)
    args = parser.parse_args()

    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh

    import taskd

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, pid = dist.get_rank(), os.getpid()
    torch.manual_seed(1)
    blocks = [
        nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH))
        for _ in range(4)
    ]
    model: nn.Module = nn.Sequential(*blocks)
    if args.kind == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    elif args.kind == "pp":
        model = blocks[rank]
    else:
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor.parallel import (
            ColwiseParallel,
            RowwiseParallel,
            parallelize_module,
        )

        mesh = init_device_mesh("cpu", (4,))
        if args.kind != "fsdp":
            mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
        if args.kind == "tpdp":
            for block in blocks:
                plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
                parallelize_module(block, mesh["inner"], plan)
            mesh = mesh["outer"]
        for block in blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    seed = {"pp": 0, "tpdp": rank // 2}.get(args.kind, rank)
    batches = torch.randn(8, BATCH, WIDTH, generator=torch.Generator().manual_seed(seed))
    schedule = None
    if args.kind == "pp":
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B

        stage = PipelineStage(model, rank, 4, torch.device("cpu"))
        schedule = Schedule1F1B(
            stage, MICRO_BATCHES, loss_fn=lambda found, wanted: (found - wanted).square().mean()
        )
    job = taskd.protect(model=model, optimizer=optimizer)
    steps = toy.Steps(args.out, rank)
    for attempt in job.steps(args.steps):
        with attempt as step:
            optimizer.zero_grad()
            batch = batches[step % len(batches)]
            if schedule is not None:
                schedule.step(
                    *([batch] if rank == 0 else []), **({"target": batch} if rank == 3 else {})
                )
            else:
                model(batch).square().mean().backward()
            optimizer.step()
        if attempt.done:
            steps.append(step, pid)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

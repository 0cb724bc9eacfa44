"""Memory that protection takes on a node, as a multiple of what its ranks hold.

memory.py [--ranks 1 2 4 8] [--layers 8] [--kinds before after …]

What the ranks hold is parameters and optimizer state: of data parallelism once, of the other kinds
the parts of all ranks. What protection takes are the blocks of all files of the node's records,
looked at after every step; the highest, and those after the last step.

before       zero_grad, backward, step, as in most tutorials
after        backward, step, zero_grad
closure      step, which calls zero_grad and backward, as in Lightning
accumulate   an update at every fourth attempt; gradients wait in three of them
fsdp, zero   FSDP2, ZeroRedundancyOptimizer
stages       every rank has another part of the model, as in a pipeline
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from arguments import Arguments
from figures import Figures, publish
from launchers import TASKD
from records import environment

KINDS = ("before", "after", "closure", "accumulate", "fsdp", "zero", "stages")
WIDTH, EVERY = 1024, 4


def main() -> None:
    parser = Arguments(__doc__)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)  # given to a rank
    parser.add_argument("--kind", choices=KINDS, help=argparse.SUPPRESS)
    parser.size("--ranks", [1, 2, 4, 8], [2])
    parser.size("--layers", 8, 1)
    parser.size("--steps", 16, 9)
    parser.add_argument("--kinds", choices=KINDS, nargs="+", default=list(KINDS))
    args = parser.parse_args()
    if args.out is not None:
        train(args)
        return
    title = f"{args.layers} layers of {WIDTH} x {WIDTH}, AdamW; copies of what the ranks hold"
    table = Figures(title, "", "ranks", "held, MB", "at most", "at the end", "beside what waits")
    found: list[dict[str, Any]] = []
    for kind in args.kinds:
        for ranks in args.ranks:
            one = run(args, kind, ranks)
            found.append(one)
            copies = (one[name] / one["held"] for name in ("most", "last", "rest"))
            held = f"{one['held'] / 1e6:.0f}"
            table.add_row(kind, str(ranks), held, *(f"{value:.2f}" for value in copies))
    publish(args.json, table, runs=found)


def run(args: Any, kind: str, ranks: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        out = Path(name)
        more = ["--kind", kind, "--layers", str(args.layers), "--steps", str(args.steps)]
        words = [*TASKD, "run", "--nproc_per_node", str(ranks), __file__, "--out", name, *more]
        env = environment(out) | {"TASKD_SNAPSHOT_STEPS": "1"}
        done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{done.stdout}\n{done.stderr}")
        parts = [json.loads(path.read_text()) for path in sorted(out.glob("rank-*"))]
    held = sum(p["held"] for p in parts) if kind in ("fsdp", "stages") else parts[0]["held"]
    if kind == "zero":  # the parameters once, and each rank's share of the optimizer's state
        held = parts[0]["parameters"] + sum(p["held"] - p["parameters"] for p in parts)
    most, last = max(p["most"] for p in parts), parts[0]["last"]
    waits = sum(p["waits"] for p in parts)
    return {"kind": kind, "ranks": ranks, "held": held, "most": most, "last": last} | {
        "rest": most - waits
    }


def train(args: Any) -> None:
    import torch
    import torch.distributed as dist
    from torch import nn

    import taskd

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, alone = dist.get_rank(), dist.get_world_size() == 1
    torch.manual_seed(rank if args.kind == "stages" else 0)
    model: nn.Module = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(args.layers)])
    if args.kind == "fsdp":
        from torch.distributed.fsdp import fully_shard

        model = fully_shard(model)
    elif args.kind != "stages":
        model = nn.parallel.DistributedDataParallel(model)
    if args.kind == "zero":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        optimizer: Any = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW)
    else:
        optimizer = torch.optim.AdamW(model.parameters())
    job = taskd.protect(model=model, optimizer=optimizer)
    most = 0
    for attempt in job.steps(args.steps):
        with attempt as step:
            accumulates = args.kind == "accumulate"
            x = torch.randn(8, WIDTH)

            def backward(clears: bool = True, x: torch.Tensor = x) -> torch.Tensor:
                if clears:
                    optimizer.zero_grad()
                loss = model(x).square().mean()
                loss.backward()
                return loss

            if args.kind == "closure":
                loss = optimizer.step(backward)
            else:
                loss = backward(args.kind != "after" and not (accumulates and step % EVERY))
                if not accumulates or step % EVERY == EVERY - 1:
                    optimizer.step()
            if args.kind == "after":
                optimizer.zero_grad()
            if args.kind == "stages" and not alone:
                dist.all_reduce(loss.detach())
        most = max(most, taken())
    state = optimizer.optim.state if args.kind == "zero" else optimizer.state
    moments = [value for found in state.values() for value in found.values()]
    parameters = sum(map(size, model.parameters()))
    held = parameters + sum(map(size, moments))
    # the last two records of each rank have the gradients of an update to come, or none
    waits = 2 * parameters if args.kind == "accumulate" else 0
    found = {"held": held, "parameters": parameters, "most": most, "last": taken()}
    (args.out / f"rank-{rank}").write_text(json.dumps({**found, "waits": waits}))
    dist.barrier()
    dist.destroy_process_group()


def size(tensor: Any) -> int:
    local = getattr(tensor, "_local_tensor", tensor)
    return int(local.numel() * local.element_size()) if local.dim() else 0


def taken() -> int:
    """Bytes of the files of this node's records."""
    found = Path(os.environ["TASKD_SHARED_DIR"]).glob("*-*")
    return sum(path.stat().st_blocks * 512 for path in found)


if __name__ == "__main__":
    main()

"""A model with large state: what protecting and recording it costs in time and memory, and how long
a killed rank takes.

    python benchmarks/large.py [--gib 2] [--ranks 4] [--steps 14] [--rounds 3]
                               [--kind ddp|fsdp|hsdp]

GiB are those of parameters and AdamW's state together. By turns: plain torchrun, taskd without
stripes, with TASKD_SNAPSHOT_STEPS=1, and auto. A run of `kill` kills rank 1 in the middle.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import toy
from arguments import Arguments
from figures import Figures, publish, summary
from jobs import Run

WIDTH = 1024
WARM = 3  # steps before the medians begin
VARIANTS: dict[str, dict[str, str] | None] = {
    "torchrun": None,
    "no stripes": {"TASKD_STRIPES": "off"},
    "k = 1": {"TASKD_SNAPSHOT_STEPS": "1"},
    "auto": {"TASKD_SNAPSHOT_STEPS": "auto"},
}


def train(args: argparse.Namespace) -> None:
    import torch
    import torch.distributed as dist
    from torch import nn

    import taskd

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = round(args.gib * 2**30 / (12 * WIDTH * WIDTH))
    blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(layers)]
    model: nn.Module = nn.Sequential(*blocks)
    if args.kind in ("fsdp", "hsdp"):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        hybrid = args.kind == "hsdp"
        shape = (2, args.ranks // 2) if hybrid else (args.ranks,)
        names = ("replicate", "shard") if hybrid else ("shard",)
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        for block in blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    else:
        model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    dist.barrier()
    before = time.monotonic()
    job = taskd.protect(model=model, optimizer=optimizer)
    protecting, rank = time.monotonic() - before, dist.get_rank()
    x, steps = torch.randn(4, WIDTH), toy.Steps(args.out, rank)
    for attempt in job.steps(args.steps):
        with attempt as step:
            if args.kill and rank == 1 and step == args.steps // 2 and first(args.out):
                os.kill(os.getpid(), signal.SIGKILL)
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        steps.append(step, os.getpid())
    if rank == 0:
        status = dict(
            line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines()
        )
        found = {
            "protect": protecting,
            "anon": int(status["RssAnon"].split()[0]) / 2**20,
        }
        (args.out / "result.json").write_text(json.dumps(found))
    if not job.protected:
        os._exit(0)  # gloo aborts at the interpreter's end now and then


def first(out: Path) -> bool:
    try:
        (out / "killed").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def run(args: argparse.Namespace, variant: dict[str, str] | None, kill: bool) -> dict[str, Any]:
    given = [f"--{name}={getattr(args, name)}" for name in ("ranks", "gib", "steps", "kind")]
    given += ["--kill"] if kill else []
    taskd, more = variant is not None, variant or {}
    with (
        tempfile.TemporaryDirectory() as place,
        Run(Path(place), args.ranks, taskd, __file__, given, **more) as job,
    ):
        job.finish()
        found: dict[str, Any] = json.loads((job.directory / "result.json").read_text())
        at = [record[1] / 1e9 for record in job.steps[0].read()][WARM:]
        found["step"] = statistics.median(b - a for a, b in zip(at, at[1:], strict=False))
        found["recovery"] = sum(incident["seconds"] for incident in job.incidents())
        log = "".join(p.read_text() for p in job.log.glob("worker-0.log"))
        every = [line.split()[-2] for line in log.splitlines() if "is recorded every" in line]
        found["every"] = every[-1] if every else "1"
        return found


def main() -> None:
    parser = Arguments(__doc__)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)  # given to a rank
    parser.size("--gib", 2.0, 0.05)
    parser.size("--ranks", 4, 2)
    parser.size("--steps", 14, 6)
    parser.size("--rounds", 3, 1)
    parser.add_argument("--kind", choices=("ddp", "fsdp", "hsdp"), default="ddp")
    parser.add_argument("--kill", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.out is not None:
        train(args)
        return
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in VARIANTS}
    for _ in range(args.rounds):
        for name, variant in VARIANTS.items():
            found[name].append(run(args, variant, kill=False))
    found["a kill, k = 1"] = [run(args, VARIANTS["k = 1"], kill=True)]
    title = f"{args.kind}, {args.gib} GiB, {args.ranks} ranks; medians of {args.rounds} runs"
    heads = ("protect, s", "step, s", "k", "anonymous memory, GiB", "kill to next step, s")
    table = Figures(title, "", *heads)
    for name, runs in found.items():
        cells = {k: summary([r[k] for r in runs])["median"] for k in ("protect", "step", "anon")}
        protect, step, anon = (f"{value:.2f}" for value in cells.values())
        recovery = runs[-1]["recovery"]
        table.add_row(
            name, protect, step, runs[-1]["every"], anon, f"{recovery:.2f}" if recovery else ""
        )
    publish(args.json, table, runs=found)


if __name__ == "__main__":
    main()

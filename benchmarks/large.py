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
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ports import free_port

from taskd.history.reading import repaired

WIDTH = 1024
WARM = 3  # steps before the medians begin
BIN = Path(sys.executable).parent
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
    x, times = torch.randn(4, WIDTH), [time.monotonic()]
    for attempt in job.steps(args.steps):
        with attempt as step:
            if args.kill and rank == 1 and step == args.steps // 2 and first(args.out):
                os.kill(os.getpid(), signal.SIGKILL)
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        times.append(time.monotonic())
    if rank == 0:
        spans = [b - a for a, b in zip(times[WARM:], times[WARM + 1 :], strict=False)]
        status = dict(
            line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines()
        )
        found = {
            "protect": protecting,
            "step": statistics.median(spans),
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
    with tempfile.TemporaryDirectory() as place:
        out = Path(place)
        clean = {k: v for k, v in os.environ.items() if not k.startswith("TASKD_")}
        env = {**clean, "OMP_NUM_THREADS": "1", "TASKD_LOG_PATH": str(out / "log")}
        env |= {"TASKD_PORT": str(free_port()), "TASKD_SECRET": "benchmark", **(variant or {})}
        launcher = [BIN / "torchrun"] if variant is None else [BIN / "taskd", "run"]
        command = [*launcher, "--nproc_per_node", str(args.ranks), __file__, "--out", str(out)]
        for name in ("gib", "steps", "kind"):
            command += [f"--{name}", str(getattr(args, name))]
        done = subprocess.run(
            [*command, "--kill"] if kill else command, env=env, capture_output=True, text=True
        )
        if done.returncode:
            sys.exit(done.stdout[-2000:] + done.stderr[-2000:])
        found: dict[str, Any] = json.loads((out / "result.json").read_text())
        if incidents := repaired(out / "log"):
            found["recovery"] = sum(incident["seconds"] for incident in incidents)
        log = "".join(p.read_text() for p in (out / "log").glob("worker-0.log"))
        every = [line.split()[-2] for line in log.splitlines() if "is recorded every" in line]
        found["every"] = every[-1] if every else "1"
        return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--gib", type=float, default=2.0)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kind", choices=("ddp", "fsdp", "hsdp"), default="ddp")
    parser.add_argument("--kill", action="store_true")
    args = parser.parse_args()
    if args.out is not None:
        train(args)
        return
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in VARIANTS}
    for _ in range(args.rounds):
        for name, variant in VARIANTS.items():
            found[name].append(run(args, variant, kill=False))
    print(f"{args.kind}, {args.gib} GiB, {args.ranks} ranks; medians of {args.rounds} runs")
    for name, runs in found.items():
        protect, step, anon = (
            statistics.median(r[key] for r in runs) for key in ("protect", "step", "anon")
        )
        every = runs[-1]["every"]
        print(
            f"{name:11} protect {protect:.2f} s  step {step:.3f} s  k {every} anon {anon:.2f} GiB"
        )
    killed = run(args, VARIANTS["k = 1"], kill=True)
    print(
        f"a kill, k = 1: {killed['recovery']:.2f} s to the next step, anon {killed['anon']:.2f} GiB"
    )


if __name__ == "__main__":
    main()

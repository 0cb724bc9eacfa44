"""Empty attempts in one rank under taskd: the cost of the loop itself. Run by
benchmarks/overhead.py."""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import time
from array import array
from pathlib import Path
from typing import Any

import toy

COUNT = 3000
BLOCK = 100
COLD = 300  # attempts with work in them


def after_work(job: Any) -> dict[str, list[float]]:
    """The same attempts with a step's work in each, which evicts the caches, as in a real job.

    Measures the time between the end of one body and the beginning of the next.
    """
    import torch

    other, optimizer = toy.build()
    # arrays: lists that the loop fills would be recorded, and copied in each step; so would one
    # batch for all of them
    gaps, walls, end, there = array("d"), array("d"), 0.0, 0.0
    for attempt in job.steps(job.step + COLD):
        with attempt:
            if end:
                gaps.append((time.thread_time() - end) * 1e6)
                walls.append((time.perf_counter() - there) * 1e6)
            batch = torch.randn(toy.BATCH, toy.WIDTH)
            optimizer.zero_grad()
            other(batch).square().mean().backward()
            optimizer.step()
            end, there = time.thread_time(), time.perf_counter()
    return {"attempt": sorted(gaps), "wall": sorted(walls), "bare": [0.0]}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--model", choices=("tiny", "toy", "many"), required=True)
    args = parser.parse_args()

    import torch
    import torch.distributed as dist

    import taskd

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    if args.model == "tiny":
        model: Any = torch.nn.Linear(4, 4)
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    elif args.model == "many":  # 1,000 parameters of 16 and 4 numbers, with as many momenta
        model = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(500)])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    else:
        model, optimizer = toy.build()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()  # creates its state
    optimizer.zero_grad()
    job = taskd.protect(model=model, optimizer=optimizer)
    assert job.protected
    # without gradients step() runs the hooks and changes nothing
    bodies = {"empty": lambda: None, "optimizer.step() without gradients": optimizer.step}
    result: dict[str, Any] = {}
    for name, body in bodies.items():
        blocks, walls, begin, wall = [], [], 0.0, 0.0
        for attempt in job.steps(job.step + COUNT):
            with attempt as step:
                body()
            if step % BLOCK == 0:
                # nothing waits, so the thread's CPU time is the cost; wall time also counts other
                # users of the core
                now, there = time.thread_time(), time.perf_counter()
                if wall:
                    blocks.append((now - begin) / BLOCK * 1e6)
                    walls.append((there - wall) / BLOCK * 1e6)
                begin, wall = now, there
        bare = []
        for _ in range(COUNT // BLOCK):
            begin = time.thread_time()
            for _ in range(BLOCK):
                body()
            bare.append((time.thread_time() - begin) / BLOCK * 1e6)
        result[name] = {"attempt": sorted(blocks), "wall": sorted(walls), "bare": sorted(bare)}
    result["after a step's work"] = after_work(job)
    profile = cProfile.Profile()
    profile.enable()
    for attempt in job.steps(job.step + COUNT):
        with attempt:
            pass
    profile.disable()
    stats: Any = pstats.Stats(profile)
    rows = [
        (own / COUNT * 1e6, calls / COUNT, f"{Path(file).name}:{name}")
        for (file, _, name), (_, calls, own, _, _) in stats.stats.items()
    ]
    result["profile"] = sorted(rows, reverse=True)[:25]
    (Path(args.out) / "result.json").write_text(json.dumps(result))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""What checks.py starts under a launcher: ranks.py OUT reduce|abort|census."""

from __future__ import annotations

import json
import os
import re
import signal
import statistics
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import place
import torch
import torch.distributed as dist

from taskd.devices import nccl

STEPS, FIRST, LAST = 16, 8, 14  # ranks are compared at the ends of steps 7 and 15


def reduce(here: place.Place) -> dict[str, Any]:
    """All-reduces of 1 KB and of a large tensor: right, and how long each takes."""
    large = 1 << (18 if place.CPU else 24)
    found: dict[str, Any] = {"large_bytes": 4 * large}
    world = dist.get_world_size()
    for name, size in (("1kb", 256), ("large", large)):
        times = []
        for _ in range(6):
            tensor = torch.full((size,), float(dist.get_rank() + 1), device=here.kind)
            here.module.synchronize()
            began = time.monotonic()
            dist.all_reduce(tensor)
            here.module.synchronize()
            times.append(1e3 * (time.monotonic() - began))
            assert float(tensor.sum()) == size * world * (world + 1) / 2
        found[f"{name}_ms"] = statistics.median(times)
    return found


def abort(here: place.Place) -> dict[str, Any] | None:
    """Rank 2 dies; the others abort two groups with work queued behind their collectives."""
    side = dist.new_group()
    tensor, behind = torch.ones(1 << 12, device=here.kind), torch.zeros(1, device=here.kind)
    for _ in range(3):
        dist.all_reduce(tensor)
        dist.all_reduce(tensor, group=side)
        tensor.fill_(1.0)
    here.module.synchronize()
    if dist.get_rank() == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.5)
    dist.all_reduce(tensor, group=side)
    dist.all_reduce(tensor)
    behind.add_(1)
    whole = [dist.group.WORLD, side]
    backends = [group._get_backend(torch.device(here.kind)) for group in whole]
    began = time.monotonic()
    ended = nccl.abort(backends)
    aborted = time.monotonic()
    here.module.synchronize()
    return {
        "ended": len(ended) == 2,
        "abort_ms": 1e3 * (aborted - began),
        "synchronize_ms": 1e3 * (time.monotonic() - aborted),
        "ran_behind": float(behind) == 1.0,
        "whole": float(tensor.sum()) == tensor.numel() * 9,
    }


def census(here: place.Place) -> dict[str, Any]:
    """A rank under taskd: where its training waits for the device in an undisturbed step."""
    import taskd

    net = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4))).to(here.kind)
    model = torch.nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.randn(8, 64).to(here.kind)
    job = taskd.protect(model=model, optimizer=optimizer)
    waits: list[str] = []

    def place_of(stack: str) -> str:
        files = re.findall(r'File ".*/taskd/(.*)", line (\d+)', stack)
        beside = not files or files[-1][0].endswith("state/publisher.py")
        return "" if beside else ":".join(files[-1])

    def count(on: bool) -> None:
        if place.CPU:
            from tests import late

            late.extension().trace_waits(on)
            found = late.extension().waits(True)
            waits.extend(place_of(stack) for _, stack in found if not on)
        else:
            torch.cuda.set_sync_debug_mode("warn" if on else "default")

    def shown(message: Any, *_: Any, **__: Any) -> None:
        import traceback

        waits.append(place_of("".join(traceback.format_stack())))

    warnings.simplefilter("always")
    warnings.showwarning = shown
    for attempt in job.steps(STEPS):
        with attempt as step:
            optimizer.zero_grad()
            model(data).square().mean().backward()
            optimizer.step()
            if step in (FIRST, LAST):
                count(step == FIRST)
    by_place = {name: waits.count(name) / (LAST - FIRST) for name in set(waits) if name}
    return {"waits_a_step": sum(by_place.values()), "by_place": by_place}


if __name__ == "__main__":
    what = {"reduce": reduce, "abort": abort, "census": census}[sys.argv[2]]
    Path(sys.argv[1])
    chosen = place.use()
    dist.init_process_group(chosen.backend)
    result = what(chosen)
    if sys.argv[2] == "abort" or dist.get_rank() == 0:
        print(f"{sys.argv[2]} {json.dumps(result)}\n", end="", flush=True)
    if sys.argv[2] != "census":
        time.sleep(0.5)
        os._exit(0)

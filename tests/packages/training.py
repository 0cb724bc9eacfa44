"""What the scripts of this folder share: ranks, seeds, deaths that run.py asks for, and what is
compared."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

import taskd

STEPS = int(os.environ.get("STEPS", "24"))


class Training:
    """`rank`, `world`; `steps`: how many to take."""

    def __init__(self, seed: int = 0) -> None:
        torch.set_num_threads(1)
        if not dist.is_initialized():
            dist.init_process_group("gloo")
        self.rank, self.world, self.steps = dist.get_rank(), dist.get_world_size(), STEPS
        self._out = Path(os.environ["OUT"])
        torch.manual_seed(seed)

    def apart(self, seed: int = 100) -> None:
        """From here on ranks draw other numbers."""
        torch.manual_seed(seed + self.rank)

    def optimize(
        self, optimizer: Any, model: DDP, loss_of: Callable[[], torch.Tensor] | None = None
    ) -> None:
        """All steps. `loss_of`: of one step; without it the model is given random rows."""
        self.apart()
        job = taskd.protect(model=model, optimizer=optimizer)
        for attempt in job.steps(self.steps):
            with attempt as step:
                loss = loss_of() if loss_of else model(torch.randn(4, 8)).square().mean()
                self.at(step)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            if attempt.committed:
                self.say(step, loss)

    def read(
        self, loader: Any, rows: Callable[[Any], torch.Tensor], passes: int = 1, says: bool = True
    ) -> None:
        """All batches of a loader, as `rows` of one number, to the end. `says`: what comes is
        compared, as it is the same in two runs."""
        model = DDP(torch.nn.Linear(1, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-7)
        self.apart()
        job = taskd.protect(model=model, optimizer=optimizer)
        for _ in range(passes):
            for attempt in job.batches(loader):
                with attempt as (step, batch):
                    x = rows(batch)
                    loss = model(x).square().mean()
                    self.at(step)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                if attempt.committed:
                    self.say(attempt.step, *((loss, x) if says else ()))
        self.end(*((model,) if says else ()))

    def at(self, step: int) -> None:
        """A place in a step at which this rank dies once, if KILLS has it."""
        for kill in filter(None, os.environ.get("KILLS", "").split(",")):
            rank, when = map(int, kill.split(":"))
            struck = self._out / f"struck-{rank}-{when}"
            if (rank, when) == (self.rank, step) and not struck.exists():
                struck.touch()
                os.kill(os.getpid(), signal.SIGKILL)

    def say(self, step: int, *values: Any) -> None:
        """What a step gave, in full."""
        line = json.dumps([step, [_exact(value) for value in values]]) + "\n"
        with open(self._out / f"steps-{self.rank}", "ab", buffering=0) as file:
            file.write(line.encode())

    def end(self, *values: Any) -> None:
        """What is left: modules, optimizers, tensors, numbers."""
        digest = hashlib.sha256()
        for value in values:
            _add(digest, value)
        (self._out / f"final-{self.rank}").write_text(digest.hexdigest())
        dist.barrier()
        if "TASKD_AGENT" not in os.environ:
            os._exit(0)  # torch with gloo aborts in one end of four, as recovery/scripts/record.py
        dist.destroy_process_group()


def small() -> DDP:
    return DDP(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2)))


def _exact(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        value = value.detach().double().sum().item()
    return float(value).hex() if not isinstance(value, str) else value


def _add(digest: Any, value: Any) -> None:
    if hasattr(value, "state_dict"):
        value = value.state_dict()
    if isinstance(value, torch.Tensor):
        whole = value.full_tensor() if hasattr(value, "full_tensor") else value
        digest.update(whole.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, dict):
        for key in sorted(value, key=str):
            digest.update(str(key).encode())
            _add(digest, value[key])
    elif isinstance(value, (list, tuple)):
        for item in value:
            _add(digest, item)
    elif isinstance(value, (int, float, str, bool, type(None))):
        digest.update(repr(value).encode())
    elif type(value).__module__ == "numpy":
        digest.update(repr(value.tolist()).encode())
    else:
        print(f"not compared: {type(value)}", file=sys.stderr)


def batches(rows: int, width: int, size: int, seed: int = 1) -> Iterator[torch.Tensor]:
    """Rows of this rank, in batches."""
    drawn = torch.Generator().manual_seed(seed + dist.get_rank())
    yield from torch.randn(rows, width, generator=drawn).split(size)

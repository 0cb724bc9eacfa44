"""What pretrain.py trains: a model whose layers are split by columns and rows over the
model-parallel ranks, and an optimizer whose parts lie on the data-parallel ranks, with replicas.
Takes MODEL_PARALLEL and REPLICAS from the command line. DIES_UPDATED: "RANK:STEP", where that one
dies, its update done and its parameters not gathered."""

from __future__ import annotations

import os
import signal
import sys
from datetime import timedelta
from typing import Any

import gloo_device as device
import torch
import torch.distributed as dist
from mindio_ttp.framework_ttp import tft_end_updating_os, tft_start_updating_os
from mindio_ttp.utils import tft_set_update_end_time, tft_set_update_start_time

WIDTH = int(os.environ.get("WIDTH", "64"))
# a rank that dies while groups are made leaves the others waiting for it this long
PATIENCE = timedelta(seconds=float(os.environ.get("PATIENCE", "8")))

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
MP, REPLICAS = int(sys.argv[1]), int(sys.argv[2])
DP_RANKS = list(range(RANK % MP, WORLD, MP))
MP_RANKS = list(range(RANK - RANK % MP, RANK - RANK % MP + MP))

groups: dict[str, Any] = {"world": None}
present = list(DP_RANKS)  # those that have not left


def make_groups() -> None:
    groups["world"], present[:] = None, DP_RANKS
    with device.making_groups():
        dist.init_process_group("gloo", timeout=PATIENCE)
        for name, ranks in (("dp", DP_RANKS), ("mp", MP_RANKS)):
            groups[name] = new_group(ranks)


def new_group(ranks: list[int]) -> Any:
    return dist.new_group(ranks, timeout=PATIENCE, use_local_synchronization=True)


class _Copy(torch.autograd.Function):
    """To the model-parallel region: the gradients of its ranks are summed."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        gradient = gradient.contiguous()
        dist.all_reduce(gradient, group=groups["mp"])
        return gradient


class _Sum(torch.autograd.Function):
    """From it: its ranks' parts are summed."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        dist.all_reduce(x, group=groups["mp"])
        return x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(RANK % MP)
        self.column = torch.nn.Linear(WIDTH, WIDTH // MP)
        self.row = torch.nn.Linear(WIDTH // MP, WIDTH, bias=False)
        self.dropout = torch.nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.column(_Copy.apply(x)))
        return _Sum.apply(self.row(self.dropout(hidden)))


class DistributedAdam:
    """Adam over this rank's part of the parameters. The data-parallel ranks are REPLICAS rows; the
    ranks of a row have a part each, and keep the main parameters and the moments of it."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.parameters = list(model.parameters())
        parts = len(DP_RANKS) // REPLICAS
        whole = torch.cat([p.detach().flatten() for p in self.parameters])
        self.size = -(-whole.numel() // parts)
        self.padding = self.size * parts - whole.numel()
        self.part = DP_RANKS.index(RANK) % parts
        at = self.part * self.size
        self.main = torch.nn.functional.pad(whole, (0, self.padding))[at : at + self.size].clone()
        self.moment, self.second = torch.zeros_like(self.main), torch.zeros_like(self.main)
        self.steps = 0

    @property
    def state(self) -> list[torch.Tensor]:
        return [self.main, self.moment, self.second]

    def step(self, rate: float, batches: int) -> None:
        """`batches`: of all data-parallel ranks, whose gradients are averaged."""
        gradient = torch.cat([p.grad.flatten() for p in self.parameters if p.grad is not None])
        dist.all_reduce(gradient, group=groups["dp"])
        gradient = torch.nn.functional.pad(gradient / batches, (0, self.padding))
        gradient = gradient[self.part * self.size :][: self.size]
        dist.barrier(group=groups["world"])
        tft_set_update_start_time()
        tft_start_updating_os()
        self.steps += 1
        self.moment.mul_(0.9).add_(gradient, alpha=0.1)
        self.second.mul_(0.99).addcmul_(gradient, gradient, value=0.01)
        first = self.moment / (1 - 0.9**self.steps)
        second = self.second / (1 - 0.99**self.steps)
        self.main.addcdiv_(first, second.sqrt_().add_(1e-8), value=-rate)
        tft_end_updating_os(self.steps)
        if os.environ.get("DIES_UPDATED") == f"{RANK}:{self.steps}":
            os.kill(os.getpid(), signal.SIGKILL)
        tft_set_update_end_time()
        self.gather()

    def gather(self) -> None:
        """All ranks of the data-parallel group give their parts to the model."""
        given = [torch.empty_like(self.main) for _ in present]
        dist.all_gather(given, self.main, group=groups["dp"])
        count = len(DP_RANKS) // REPLICAS
        holds = [DP_RANKS.index(rank) % count for rank in present]
        whole = torch.cat([given[holds.index(part)] for part in range(count)])
        at = 0
        with torch.no_grad():
            for parameter in self.parameters:
                parameter.copy_(whole[at : at + parameter.numel()].view_as(parameter))
                parameter.grad = None
                at += parameter.numel()


class Scheduler:
    """The learning rate, another one for each step, so that a step taken twice shows."""

    def __init__(self) -> None:
        self.steps = 0

    def step(self) -> None:
        self.steps += 1

    @property
    def rate(self) -> float:
        return 1e-3 / (1 + self.steps / 20)

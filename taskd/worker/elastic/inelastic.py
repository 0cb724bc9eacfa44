"""Why no other rank could stand in for a rank of this job."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Protocol

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from taskd.worker.elastic import hidden
from taskd.worker.elastic.standing import BATCHES, REMEDY
from taskd.worker.elastic.synchronization import lacking
from taskd.worker.state.gradients import MAIN
from taskd.worker.state.training_state import TrainingState

log = logging.getLogger("taskd.worker")

EMBEDDINGS = torch.nn.Embedding, torch.nn.EmbeddingBag
HOOKS = tuple(
    getattr(default_hooks, name)
    for name in ("allreduce_hook", "fp16_compress_hook", "bf16_compress_hook")
    if hasattr(default_hooks, name)
)


class Carrier(Protocol):
    @property
    def rank(self) -> int: ...

    @property
    def state(self) -> TrainingState: ...


class Inelastic:
    """What is known of the job. `loops`: the script has begun a loop; `loads`: over job.batches;
    `shares`: whether its last committed attempt called job.shares, None before; `draws`: it calls
    job.iterate."""

    def __init__(self, carrier: Carrier) -> None:
        self._carrier = carrier
        self.loops = self.loads = self.draws = False
        self.shares: bool | None = None
        self._noted, self._told = "", False
        self._hidden: list[str] | None = None
        self._trained = False

    def note(self, why: str) -> None:
        """What was seen while the script ran; the first counts."""
        self._noted = self._noted or why
        self.tell()

    def tell(self) -> None:
        """Log why the job is not elastic, once."""
        if self._carrier.rank == 0 and not self._told and (why := self.reason()):
            self._told = True
            log.warning("elastic-training: not possible: %s", why)

    def reason(self) -> str:
        """A sentence, "" if the job is elastic as far as is known."""
        return next(self._reasons(), "")

    def _reasons(self) -> Iterator[str]:
        state = self._carrier.state
        yield from of_state(state)
        for ddp in state.ddps:
            yield from of_ddp(ddp)
        yield from self._of_hidden()
        for name, module in _modules(state):
            if isinstance(module, torch.nn.SyncBatchNorm):
                yield (
                    f"{name} is a SyncBatchNorm, which needs the samples of all ranks at the same"
                    " time: use BatchNorm"
                )
            if isinstance(module, EMBEDDINGS) and module.sparse:
                yield f"{name} has sparse gradients: give it sparse=False"
        if self.draws:
            yield (
                "batches are drawn from job.iterate(), which cannot be read for another rank: load"
                " the batches of each rank by its number from job.shares(step)"
            )
        if self._noted:
            yield self._noted
        if self.loads:
            yield f"{BATCHES}: {REMEDY}"
        elif self.loops and self.shares is False:
            yield f"the loop's last step did not go through job.shares: {REMEDY}"

    def _of_hidden(self) -> list[str]:
        """Looked for until the script has trained."""
        if self._hidden is None or not self._trained:
            self._trained = self.shares is not None
            self._hidden = list(hidden.reasons(self._carrier.state))
        return self._hidden


def of_state(state: TrainingState) -> Iterator[str]:
    """Parameters or optimizer state that exist on one rank only."""
    if state.split:
        yield "ZeRO keeps an optimizer's state on one rank only: use another optimizer"
    names = sorted(
        {".".join(str(part) for part in key if part != "") for key in state.apart}
        or ({"parameters or optimizer state"} if state.shards else set())
    )
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        yield (
            f"{names[0]}{more} exist on one rank only: use DistributedDataParallel, or fully_shard"
            " on a mesh with a replicate dimension (HSDP)"
        )
    for parameter in state.parameters():
        if hasattr(parameter, MAIN):
            yield "gradients in .main_grad are averaged by the framework, not by torch"
            return


def of_ddp(ddp: DistributedDataParallel) -> Iterator[str]:
    name = type(ddp.module).__name__
    if missing := lacking([ddp]):
        yield f"torch {torch.__version__} lacks {', '.join(missing)}"
    for flag in ("find_unused_parameters", "static_graph"):
        if getattr(ddp, flag, False):
            yield (
                f"DistributedDataParallel({name}, {flag}=True) learns from each backward which"
                " parameters are used: leave it out"
            )
    for hook, kept in getattr(ddp, "_comm_hooks", []):
        if hook not in HOOKS or not (kept is None or isinstance(kept, dist.ProcessGroup)):
            yield (
                f"the communication hook {getattr(hook, '__name__', hook)} of"
                f" DistributedDataParallel({name}) is not known to add what it is given: use"
                f" {', '.join(known.__name__ for known in HOOKS)}, or none"
            )
    if hasattr(ddp, "buffer_hook"):
        yield (
            f"DistributedDataParallel({name}) has a hook of its own for buffers: leave it out, or"
            " give broadcast_buffers=False"
        )


def _modules(state: TrainingState) -> Iterator[tuple[str, torch.nn.Module]]:
    for name, root in state.modules.items():
        for path, module in root.named_modules():
            yield f"{name}.{path}" if path else name, module

"""torch's wrappers average gradients once a step, after the last share that a rank computes.

In all other shares DDP behaves as under no_sync() and HSDP as without its all-reduce, whatever the
script asks for. DDP's broadcast of buffers, which would begin at another rank where the first one
is away, is a sum here: it works over a shrunk group. All ranks do it once, in their first share;
the other shares get the same bytes.

Private names of DDP for this are in this file; tests/worker/test_synchronization.py compares them
with the installed torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from taskd.worker.state import fsdp2
from taskd.worker.state.given import WouldDiverge

SYNC = "_sync_buffers"  # a method
BUFFERS = "modules_buffers"


def lacking(ddps: Iterable[DistributedDataParallel]) -> list[str]:
    """What this torch lacks for shares to be computed."""
    names = (SYNC, BUFFERS, "require_backward_grad_sync", "require_forward_param_sync")
    return [f"DDP.{n}" for n in names if any(not hasattr(ddp, n) for ddp in ddps)]


class Synchronization:
    """Installed on every rank of a shrunk job. `heard`: called as the forward of a DDP begins that
    will be followed by an average."""

    def __init__(
        self, ddps: list[DistributedDataParallel], modules: dict[str, torch.nn.Module]
    ) -> None:
        self._ddps, self._modules = ddps, modules
        self._handles: list[Any] = []
        self._groups: list[tuple[Any, bool]] = []  # FSDP2's, and whether the script has them reduce
        self._in_share = self._muted = False
        self._asked: dict[int, bool] = {}  # DDP -> whether the script wants its present forward
        self._averages: dict[int, bool] = {}  # DDP -> whether its last forward's gradients will be
        self._before: list[bool] = []  # see `begin`
        self._repeats = False  # the present share is not the first
        self._buffers: dict[int, list[torch.Tensor]] = {}  # DDP -> what its forwards have got
        self._forwards: dict[int, int] = {}  # DDP -> how many have got buffers in this share
        self.heard: Callable[[], None] = lambda: None

    def install(
        self,
        rank: int,
        stand_ins: Mapping[int, int],
        of: Callable[[int], AbstractContextManager[None]],
    ) -> None:
        """`of`: rank that is away -> a context in which its buffers are in place."""
        self.remove()
        for ddp in self._ddps:
            self._handles += [
                ddp.register_forward_pre_hook(self._begins),
                ddp.register_forward_hook(self._ends, always_call=True),
            ]
            ddp.__dict__[SYNC] = self._shared(ddp, rank, stand_ins, of)
        if self._modules:
            self._handles += [
                module.register_forward_pre_hook(self._withhold)
                for module in fsdp2.roots(self._modules.values())
            ]

    def remove(self) -> None:
        self.over()
        for handle in self._handles:
            handle.remove()
        self._handles = []
        for ddp in self._ddps:
            ddp.__dict__.pop(SYNC, None)

    # -- shares ------------------------------------------------------------------------------------

    def begin(self) -> None:
        """An attempt begins."""
        self._before = [ddp.require_forward_param_sync for ddp in self._ddps]
        self._buffers, self._averages = {}, {}
        groups = fsdp2.replicated(self._modules.values())
        self._groups = [(group, getattr(group, fsdp2.REDUCES)) for group in groups]

    def share(self, first: bool, last: bool) -> None:
        """A share begins."""
        self._in_share, self._muted, self._repeats = True, not last, not first
        self._forwards = {}
        for ddp, flag in zip(self._ddps, self._before, strict=True):
            ddp.require_forward_param_sync = flag
        for group, asked in self._groups:
            setattr(group, fsdp2.REDUCES, asked and last)

    def over(self) -> None:
        """No share is computed."""
        if self._muted:
            for group, asked in self._groups:
                setattr(group, fsdp2.REDUCES, asked)
        self._in_share = self._muted = self._repeats = False

    def averages(self, ddp: DistributedDataParallel) -> bool:
        """Whether the gradients of its last forward are averaged by now, or will be."""
        return self._averages.get(id(ddp), False)

    # -- DDP ---------------------------------------------------------------------------------------

    def _begins(self, ddp: Any, _: Any) -> None:
        self._asked[id(ddp)] = ddp.require_backward_grad_sync
        if self._muted:
            ddp.require_backward_grad_sync = False
        elif ddp.require_backward_grad_sync and torch.is_grad_enabled():
            self.heard()
        if torch.is_grad_enabled():
            self._averages[id(ddp)] = ddp.require_backward_grad_sync

    def _ends(self, ddp: Any, *_: Any) -> None:
        asked = self._asked.pop(id(ddp), None)
        if asked is not None and self._muted:
            ddp.require_backward_grad_sync = asked
            # as the forward would have left it
            ddp.require_forward_param_sync = asked and torch.is_grad_enabled()

    def _shared(
        self,
        ddp: DistributedDataParallel,
        rank: int,
        stand_ins: Mapping[int, int],
        of: Callable[[int], AbstractContextManager[None]],
    ) -> Callable[[], None]:
        """Instead of a broadcast of buffers from the first rank of the DDP's group."""
        first = dist.get_global_rank(ddp.process_group, 0)
        holder = stand_ins.get(first, first)

        def sync() -> None:
            tensors = getattr(ddp, BUFFERS)
            number = self._forwards.get(id(ddp), 0)
            self._forwards[id(ddp)] = number + 1
            known = self._buffers.setdefault(id(ddp), [])
            if self._repeats:
                if number >= len(known):
                    raise WouldDiverge(
                        f"the shares of this step call {type(ddp.module).__name__} {len(known)} and"
                        f" {number + 1} times: with elastic-training and broadcast_buffers=True all"
                        " must call it as often; give DDP broadcast_buffers=False"
                    )
                _put(tensors, known[number])
                return
            if rank != holder:
                found = torch.zeros_like(_bytes(tensors))
            elif first == rank or self._sharing:
                found = _bytes(tensors)
            else:
                with of(first):
                    found = _bytes(tensors)
            dist.all_reduce(found, group=ddp.process_group)
            if self._sharing:
                known.append(found)
            _put(tensors, found)

        return sync

    @property
    def _sharing(self) -> bool:
        """Inside the first share, which on the stand-in of the first rank is that rank's."""
        return self._in_share and not self._repeats

    # -- FSDP2 -------------------------------------------------------------------------------------

    def _withhold(self, *given: Any) -> None:
        """Also where the script has just asked for it."""
        if self._muted:
            for group, _ in self._groups:
                setattr(group, fsdp2.REDUCES, False)


def _bytes(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([t.detach().reshape(-1).view(torch.uint8) for t in tensors])


def _put(tensors: list[torch.Tensor], data: torch.Tensor) -> None:
    at = 0
    for tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        part = data[at : at + size].clone().view(tensor.dtype).view(tensor.shape)
        tensor.detach().copy_(part)
        at += size

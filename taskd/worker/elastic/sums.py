"""Adds the gradients of all shares that a rank computes before they are averaged.

torch adds them in `.grad`; hooks notice where the script clears or changes them in between, or
computes some outside the loop over the shares. They run before those of DDP, which reads `.grad`.

Gradients may wait for a later step in two forms: as this rank's own sum, or as an average, which
every rank has, also those that are away. Before more is added to an average it is counted once for
each share here, or the next average would lack the ranks that are away.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from taskd.worker.elastic.synchronization import Synchronization
from taskd.worker.state import gradients, sharded
from taskd.worker.state.given import WouldDiverge
from taskd.worker.state.part import Content

# a gradient, and its version counter: it is still there if it has been added to since, once
Seen = tuple[torch.Tensor, int]


class Sums:
    """The gradients of a stand-in. `averaged`: parameters, by number, whose gradients wait as an
    average."""

    def __init__(
        self, ddps: list[DistributedDataParallel], synchronization: Synchronization
    ) -> None:
        self._synchronization = synchronization
        self._ddps = ddps
        self._hooks: dict[int, Any] = {}  # by parameter
        self._parameters: list[torch.nn.Parameter] = []
        self._owner: dict[int, DistributedDataParallel] = {}
        self.averaged: set[int] = set()
        self._count = 1  # shares
        self._open = self._sharing = self._last = False
        self._staying: dict[int, Seen] = {}  # what is in .grad, with the shares before
        # averages at the start of the attempt, with copies
        self._waiting: dict[int, tuple[Seen, torch.Tensor]] = {}
        self._is_average: dict[int, bool] = {}  # of the parameters that have got a gradient

    def watch(self, parameters: Iterable[torch.nn.Parameter], managed: set[int]) -> None:
        """The parameters, in the order common to all ranks. `managed`: those, by identity, whose
        gradients FSDP2 adds by itself."""
        self._parameters = list(parameters)
        self._owner = {id(p): ddp for ddp in self._ddps for p in ddp.module.parameters()}
        wanted = {id(p): p for p in self._parameters if p.requires_grad and id(p) not in managed}
        for gone in [key for key in self._hooks if key not in wanted]:
            self._hooks.pop(gone).remove()
        for key, parameter in wanted.items():
            if key not in self._hooks:
                hook = parameter.register_post_accumulate_grad_hook(self._ready)
                self._hooks[key] = hook

    def remove(self) -> None:
        self.over()
        for handle in self._hooks.values():
            handle.remove()
        self._hooks = {}
        self.averaged = set()

    # -- an attempt --------------------------------------------------------------------------------

    def begin(self, count: int) -> None:
        """An attempt of `count` shares begins."""
        self.over()
        self._count, self._open = count, True
        self._is_average = {}
        for index in self.averaged:
            self._note_average(self._parameters[index])

    def share(self, last: bool) -> None:
        """A share begins."""
        self._sharing, self._last = True, last

    def ended(self) -> None:
        """The share has ended."""
        self._sharing = False

    def changed(self) -> bool:
        """Whether the script has changed gradients since the last share that DDP is to average
        later. Zeros are what each rank would have."""
        for parameter in self._parameters:
            key, grad = id(parameter), parameter.grad
            seen, owner = self._staying.get(key), self._owner.get(key)
            if seen is None or grad is None or owner is None or self._is_average.get(key):
                continue
            if owner.gradient_as_bucket_view:  # views of a bucket have one version
                continue
            if (grad is not seen[0] or grad._version != seen[1]) and bool(grad.any()):
                return True
        return False

    def heard(self) -> None:
        """A forward begins whose gradients will be averaged: those averaged already in this attempt
        count for all shares."""
        for parameter in self._parameters:
            if self._is_average.get(id(parameter)) and id(parameter) not in self._waiting:
                self._note_average(parameter)

    def over(self) -> None:
        """The attempt's body has ended."""
        self._open = self._sharing = False
        self._waiting, self._staying = {}, {}

    def committed(self, left: Content) -> None:
        """An attempt was committed; `left`: gradients that wait."""
        rows = gradients.waits(left)
        was, self.averaged = self.averaged, set()
        for index in rows:
            key = id(self._parameters[index])
            # what FSDP2 has put into .grad is reduced
            if key not in self._hooks or self._is_average.get(key, index in was):
                self.averaged.add(index)
        self._is_average = {}

    def _note_average(self, parameter: torch.nn.Parameter) -> None:
        grad = parameter.grad
        # what FSDP2 adds to is not reduced again
        if grad is not None and id(parameter) in self._hooks:
            self._waiting[id(parameter)] = (grad, grad._version), grad.detach().clone()

    def _ready(self, parameter: torch.Tensor) -> None:
        grad = parameter.grad
        if not self._open or grad is None:
            return
        if not self._sharing:
            raise WouldDiverge(
                "elastic-training: a backward outside the loop over job.shares(step), or after an"
                " update, would leave out the ranks that are away: compute all gradients of a step"
                " in that loop, before the first update"
            )
        plain = not grad.requires_grad and grad.layout is torch.strided
        if id(parameter) in self._waiting and not plain:
            kind = "that can be differentiated" if grad.requires_grad else f"of {grad.layout}"
            raise WouldDiverge(
                f"elastic-training: a gradient {kind} cannot be added to an average that waits:"
                " train without create_graph=True and sparse=True"
            )
        with torch.no_grad():
            self._add(id(parameter), grad)

    def _add(self, key: int, grad: torch.Tensor) -> None:
        average = self._waiting.pop(key, None)
        if average is not None and _is_still(average[0], grad):
            grad.add_(average[1], alpha=self._count - 1)
        seen = self._staying.get(key)
        if seen is not None and not _is_still(seen, grad):
            raise WouldDiverge(
                "elastic-training: gradients are cleared or changed inside the loop over"
                " job.shares(step), so those of the shares before are lost: clear them before the"
                " loop, and change them after it"
            )
        if not grad.requires_grad and grad.layout is torch.strided:  # else it is a new one
            self._staying[key] = grad, grad._version
        owner = self._owner.get(key)
        self._is_average[key] = (
            self._last and owner is not None and self._synchronization.averages(owner)
        )


def _is_still(seen: Seen, grad: torch.Tensor) -> bool:
    """Whether `grad` is the one that was seen, added to once."""
    return grad is seen[0] and grad._version == seen[1] + 1


Rows = Iterable[tuple[int, str, torch.Tensor]]  # see state/gradients.py


def add_waiting(
    parameters: list[torch.nn.Parameter], own: Rows, others: list[Rows], add: bool
) -> set[int]:
    """Add the waiting gradients of ranks that are away, in their records, to ours; `own`: those in
    our record. Returns the numbers of the parameters whose gradient is the same in all: an average.
    `add`: they have not been added yet."""
    known = {(index, name): tensor for index, name, tensor in own}
    theirs = [{(index, name): tensor for index, name, tensor in rows} for rows in others]
    same = {
        key
        for key, mine in known.items()
        if theirs and all(key in rows and torch.equal(rows[key], mine) for rows in theirs)
    }
    for key in sorted({key for rows in theirs for key in rows} - same):
        index, name = key
        parameter = parameters[index]
        if name != gradients.GRAD:
            raise RuntimeError(
                f"the {name} of parameter {index} waits for a later update and differs between"
                " ranks: it cannot be added to that of the rank that stands in"
            )
        for rows in theirs if add else ():
            if key not in rows:
                continue
            part = rows[key].to(sharded.local(parameter).device)
            if parameter.grad is None:
                parameter.grad = sharded.like(parameter, part)
            else:
                sharded.local(parameter.grad).add_(part)
    return {index for index, name in same if name == gradients.GRAD}

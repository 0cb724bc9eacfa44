"""Adds the gradients of all shares that a rank computes before they are averaged.

In a loop over `job.batches` the script clears gradients, clips or unscales them in each share as it
always does. So a gradient is taken out of `.grad` as soon as it is there, and what stays is the
zero that changes nothing, -0.0, whatever the script then does to it in this share; the first
gradient of the last share gets the sum of the others.
torch runs these hooks before those of DDP, which reads `.grad` then. The result is bit for bit that
of accumulating all shares in `.grad` (tests/worker/test_shares_of_ranks.py).

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
        self._open = self._sharing = self._taking = self._last = False
        self._sums: dict[int, torch.Tensor] = {}  # of the shares before, by parameter
        self._left: dict[int, Seen] = {}  # what stayed in .grad in this share, before an average
        self._staying: dict[int, Seen] = {}  # what is in .grad where shares are not taken out
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

    def share(self, last: bool, taking: bool) -> None:
        """A share begins. `taking`: gradients must not stay in .grad."""
        self._sharing, self._last, self._taking, self._left = True, last, taking, {}

    def ended(self) -> None:
        """The share has ended. What the script did to the zeros in .grad it also does in the last
        share, to the sum."""
        if self._sharing and self._taking and not self._last:
            with torch.no_grad():
                for parameter in self._parameters:
                    if id(parameter) in self._sums and parameter.grad is not None:
                        parameter.grad.fill_(-0.0)
        self._sharing = False

    def changed(self) -> bool:
        """Whether the script has changed gradients that are not averaged in the last share."""
        return self._last and any(
            grad is not seen[0] or grad._version != seen[1]
            for parameter in self._parameters
            if (seen := self._left.get(id(parameter))) and (grad := parameter.grad) is not None
        )

    def heard(self) -> None:
        """A forward begins whose gradients will be averaged: those averaged already in this attempt
        count for all shares."""
        for parameter in self._parameters:
            if self._is_average.get(id(parameter)) and id(parameter) not in self._waiting:
                self._note_average(parameter)

    def complete(self) -> None:
        """All shares have been computed: parameters without a gradient in the last one get those of
        the others."""
        for parameter in self._parameters:
            rest = self._sums.pop(id(parameter), None)
            if rest is not None:
                grad = parameter.grad
                parameter.grad = rest if grad is None else grad.add_(rest)

    def over(self) -> None:
        """The attempt's body has ended."""
        self._open = self._sharing = False
        self._sums, self._left, self._waiting, self._staying = {}, {}, {}, {}

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
        touched = self._taking or id(parameter) in self._waiting
        if touched and (grad.requires_grad or grad.layout is not torch.strided):
            kind = "that can be differentiated" if grad.requires_grad else f"of {grad.layout}"
            raise WouldDiverge(
                f"elastic-training: a gradient {kind} cannot be added to those of other shares:"
                " loop over job.shares(step), or train without create_graph=True and sparse=True"
            )
        with torch.no_grad():
            self._add(id(parameter), grad)

    def _add(self, key: int, grad: torch.Tensor) -> None:
        average = self._waiting.pop(key, None)
        if average is not None and _is_still(average[0], grad):
            grad.add_(average[1], alpha=self._count - 1)
        if not self._taking:
            self._added(key, grad)
        elif self._last:
            rest = self._sums.pop(key, None)
            if rest is not None:
                grad.add_(rest)
        else:
            left = self._left.get(key)
            if left is not None and not _is_still(left, grad):
                raise WouldDiverge(
                    "elastic-training: gradients are cleared or exchanged between two backwards of"
                    " one step, so those of several ranks' samples cannot be added by themselves:"
                    " loop over job.shares(step)"
                )
            rest = self._sums.get(key)
            if rest is None:
                self._sums[key] = grad.clone()
            else:
                rest.add_(grad)
            grad.fill_(-0.0)
            self._left[key] = grad, grad._version
        owner = self._owner.get(key)
        averages = self._last and owner is not None and self._synchronization.averages(owner)
        self._is_average[key] = averages
        if self._last and not averages:
            self._left[key] = grad, grad._version

    def _added(self, key: int, grad: torch.Tensor) -> None:
        """A gradient stays in .grad, with those of the shares before."""
        seen = self._staying.get(key)
        if seen is not None and not _is_still(seen, grad):
            raise WouldDiverge(
                "elastic-training: gradients are cleared or changed inside the loop over"
                " job.shares(step), so those of the shares before are lost: clear them before the"
                " loop, and change them after it"
            )
        if not grad.requires_grad and grad.layout is torch.strided:  # else it is a new one
            self._staying[key] = grad, grad._version


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

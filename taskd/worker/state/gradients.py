"""Gradients that wait between two attempts: part of a rank's record, since the next attempt starts
from them.

Under accumulation over attempts, with two optimizers of different periods, or with `retain`, the
`.grad` at the end of an attempt goes into the next update. It is recorded with the step and
restored on every rank.

The usual script leaves gradients behind too, but clears them before it computes new ones: recording
those would cost a copy of the model for each rank. So gradients *used* by an optimizer's update are
recorded only once the script is seen to go on with them. Each update and each interruption checks
that: if the script does continue with one of these gradients, the step that used it is not offered
for repetition (`broken`), the one before is, and from the next step on they are recorded. A
replacement gets zeros in their place, so that its check works too.

Wrappers that accumulate into `parameter.main_grad` (Megatron's) are recorded in the same way, but
always: their tensors never change, so nothing shows whether they were cleared.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from taskd.cython_api.attempt import Rows
from taskd.cython_api.gradients import Used
from taskd.cython_api.part import Grads
from taskd.worker.state import plain, sharded
from taskd.worker.state.given import UnsupportedState, parameters_of
from taskd.worker.state.part import GRADIENTS, Content, Part

GRAD, MAIN = "grad", "main_grad"
EARLY = 6  # updates, of all optimizers
EMPTY = Content(version=[])


Row = tuple[int, str, torch.Tensor]  # number of the parameter, attribute (see `_name`), gradient


class Gradients(Grads, Part):
    """Tracks a rank's gradients between attempts. Used by the training thread."""

    name, order = "gradients", GRADIENTS
    shared, late = False, True

    def __init__(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        self.tensor, self.optimizers, self.early = torch.Tensor, list(optimizers), True
        self._met: list[weakref.ref[torch.Tensor]] = []
        self._updates = 0
        self._described: tuple[Any, Any] = (), ()
        self._data = b""

    def watch(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Watch all protected parameters, in the order common to all ranks."""
        self.let_go()  # the numbers of parameters are in what was taken
        self.parameters = list(parameters)
        self.main = any(hasattr(p, MAIN) for p in self.parameters)

    # -- in an attempt -----------------------------------------------------------------------------

    def meet(self, optimizer: torch.optim.Optimizer) -> None:
        """Note the gradients of an update, one of the first."""
        self._updates += 1
        self.early = self._updates < EARLY
        grads = (p.grad for p in parameters_of(optimizer))
        self._met += [weakref.ref(g) for g in grads if g is not None]

    def met(self) -> Iterator[torch.Tensor]:
        """Gradients of early updates that still exist, though no parameter may have them now: views
        of DDP's buckets."""
        yield from (sharded.local(g) for g in (ref() for ref in self._met) if g is not None)

    def interrupted(self) -> bool:
        """Whether the interrupted attempt cannot be repeated from its record: it has written to a
        gradient left behind and not recorded."""
        for owner in self.unrecorded & set(self.used):
            if self.used[owner].any_touched():
                self.broken = True
                self.goes_on.add(owner)
        return self.broken

    # -- between attempts --------------------------------------------------------------------------

    def renew(self, step: int, whole: bool) -> Content:
        if self.content is None:
            self.still(step)
        if not self.waits and not self.skipped:
            return EMPTY
        described, rows = [], []
        for number, (index, gradient) in enumerate(self.waits):
            name = MAIN
            if number < self.grads:
                name = _name(index, gradient, self.parameters[index])
                gradient = sharded.local(gradient)
            shape, row = plain.flat(gradient)
            described.append((index, name, *shape))
            if row.numel():
                rows.append(row)
        memory = Rows(rows) if rows else b""
        known, self._described = self._described, (self.skipped, described)
        if known != self._described:
            self._data = plain.encode(self._described)
        return Content(self._data, memory, self.version)

    # -- in a repair -------------------------------------------------------------------------------

    def abandon(self) -> None:
        """Forget an attempt that ended without a commit; a step begins again."""
        self.stepped.clear()
        self.broken = False

    def put(self, content: Content) -> None:
        """Set `.grad` as recorded. A gradient left out because the script clears it stays if
        untouched, so that its use is still noticed."""
        rows, skipped = read(content)
        if self.fresh:
            self._stand_in(skipped)
        found = (self.used.get(owner) for owner in self.unrecorded)
        untouched = {number for used in found if used is not None for number in used.untouched()}
        parameters = self.parameters
        for parameter in parameters:
            if id(parameter) not in untouched:
                parameter.grad = None
        for index, name, gradient in rows:
            name, _, laid_out = name.partition(" ")
            if not 0 <= index < len(parameters) or name not in (GRAD, MAIN):
                raise RuntimeError(
                    f"the record has a {name} of parameter {index}; this process has"
                    f" {len(parameters)} parameters"
                )
            parameter = parameters[index]
            present = getattr(parameter, name, None)
            part = sharded.local(parameter)
            if gradient.shape != part.shape and name == GRAD and not laid_out:
                raise RuntimeError(
                    f"the record has a gradient of shape {tuple(gradient.shape)} for parameter"
                    f" {index}, which has shape {tuple(part.shape)}"
                )
            if name == GRAD:
                parameter.grad = sharded.like(parameter, gradient.to(part.device), laid_out)
            elif isinstance(present, torch.Tensor) and present.numel() == gradient.numel():
                present.copy_(gradient)  # a view of the wrapper's buffer
            else:
                setattr(parameter, name, gradient.to(parameter.device))
        for used in self.used.values():
            used.renew(untouched)  # the same gradients, in other tensors

    def holds(self, content: Content) -> bool:
        here = {(index, name): gradient for index, name, gradient in read(self.take(0))[0]}
        return all(
            (index, name) in here and plain.same(here[index, name], gradient)
            for index, name, gradient in read(content)[0]
        )

    def _stand_in(self, skipped: Iterable[int]) -> None:
        """Put zeros in place of gradients that a replacement lacks and the script is expected to
        clear."""
        wanted = {id(self.parameters[i]) for i in skipped if 0 <= i < len(self.parameters)}
        for optimizer in self.optimizers:
            lacking = [p for p in parameters_of(optimizer) if id(p) in wanted]
            for parameter in lacking:
                parameter.grad = torch.zeros_like(parameter)
            if lacking:
                self.used[id(optimizer)] = Used(lacking)
                self.unrecorded.add(id(optimizer))


def read(content: Content) -> tuple[list[Row], list[int]]:
    """The gradients that a content has, in memory of their own, and the parameters whose gradients
    were left out. Raises RuntimeError."""
    try:
        skipped, described = plain.decode(content.data) if content.data else ([], [])
        memory, rows = memoryview(content.flat()), []
        for index, name, dtype, shape, stride in described:
            if type(index) is not int or not isinstance(name, str):
                raise plain.Unreadable(f"number {index!r}, attribute {name!r}")
            size = math.prod(shape) * plain.dtype_of(dtype).itemsize
            rows.append((index, name, plain.tensor_of(dtype, shape, stride, memory[:size])))
            memory = memory[size:]
        if len(memory):
            raise plain.Unreadable(f"{len(memory)} bytes more than its gradients have")
        return rows, [int(i) for i in skipped]
    except (plain.Unreadable, TypeError, ValueError) as error:
        raise RuntimeError(f"the gradients in the record cannot be read: {error}") from None


def only(content: Content, parameters: set[int]) -> Content:
    """Those of some parameters, by number."""
    if not content.data:
        return content
    rows, skipped = read(content)
    rows = [row for row in rows if row[0] in parameters]
    flat = [plain.flat(gradient) for _, _, gradient in rows]
    described = [(i, name, *shape) for (i, name, _), (shape, _) in zip(rows, flat, strict=True)]
    memory = Rows([row for _, row in flat if row.numel()]).gather(b"")
    return Content(plain.encode((skipped, described)), memory)


def waits(content: Content) -> set[int]:
    """The parameters, by number, whose `.grad` it has."""
    described = plain.decode(content.data)[1] if content.data else []
    return {index for index, name, *_ in described if name == GRAD}


def _name(index: int, gradient: torch.Tensor, parameter: torch.Tensor) -> str:
    """ "grad", and how it is laid out if not as its parameter is."""
    try:
        return f"{GRAD} {sharded.otherwise(gradient, parameter)}".rstrip()
    except ValueError as error:
        raise UnsupportedState(
            f"the gradient of parameter {index} waits between two steps and cannot be recorded:"
            f" its layout is not that of the parameter ({error}): clear it with zero_grad(), or"
            " redistribute it"
        ) from None

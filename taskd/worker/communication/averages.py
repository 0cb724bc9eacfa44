"""ReduceOp.AVG in shrunk groups (shrunk.py): a sum, and a division by the group's size. Backends
divide by how many members they have."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from taskd.worker.communication import shrunk
from taskd.worker.communication.shrunk import Shrunk

AVERAGING = ("allreduce", "allreduce_coalesced", "reduce")  # methods of ProcessGroup


def method(original: Any) -> Any:
    """A method in the place of `original`."""

    def averaging(handle: Any, *args: Any, **more: Any) -> Any:
        group = shrunk.of(handle)
        if group is None:
            return original(handle, *args, **more)
        options = [o for o in (*args, *more.values()) if _is_average(getattr(o, "reduceOp", None))]
        plain = any(_is_average(a) for a in (*args, *more.values()))
        if not options and not plain:
            return original(handle, *args, **more)
        given = args[0] if args else more.get("tensors", more.get("tensor"))
        tensors = listed(given)
        check(tensors, group)
        summed = [_sum_for(a) for a in args], {key: _sum_for(a) for key, a in more.items()}
        for option in options:
            option.reduceOp = dist.ReduceOp.SUM
        try:
            work = original(handle, *summed[0], **summed[1])
        finally:
            for option in options:
                option.reduceOp = dist.ReduceOp.AVG
        if (root := _root(args, more)) is not None and root != handle.rank():
            return work  # only the root has the result
        if work is None:
            divide(tensors, len(group.ranks))
            return None
        return Averaged(work, tensors, len(group.ranks))

    return averaging


def _is_average(value: Any) -> bool:
    kinds = dist.ReduceOp, dist.ReduceOp.RedOpType
    return isinstance(value, kinds) and bool(value == dist.ReduceOp.AVG)


def _sum_for(value: Any) -> Any:
    return dist.ReduceOp.SUM if _is_average(value) else value


def _root(args: tuple[Any, ...], more: dict[str, Any]) -> int | None:
    """The root of a reduce: its number in the group."""
    for option in (*args, *more.values()):
        if (root := getattr(option, "rootRank", None)) is not None:
            return int(root)
    given = more.get("root", args[1] if len(args) > 1 else None)
    return given if type(given) is int else None


def listed(given: Any) -> list[torch.Tensor]:
    return [given] if isinstance(given, torch.Tensor) else list(given)


def check(tensors: list[torch.Tensor], group: Shrunk) -> None:
    """Backends differ in what they do with averages of whole numbers: gloo refuses them."""
    for tensor in tensors:
        if not (tensor.is_floating_point() or tensor.is_complex()):
            raise group.refusal(
                f"ReduceOp.AVG of {str(tensor.dtype).removeprefix('torch.')}",
                "reduce by ReduceOp.SUM",
            )


def divide(tensors: list[torch.Tensor], size: int) -> None:
    with torch.inference_mode():  # also of tensors that require a gradient
        for tensor in tensors:
            tensor.div_(size)


class Averaged(dist.Work):
    """The work of a sum over `tensors`, which are divided by `size` when it is done."""

    def __init__(self, work: Any, tensors: list[torch.Tensor], size: int) -> None:
        super().__init__()
        self._work, self._tensors = work, tensors

        def divided(future: Any) -> list[torch.Tensor]:
            future.value()  # raises what it has failed with
            divide(tensors, size)
            return tensors

        self._future = work.get_future().then(divided)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        done = bool(self._work.wait(timeout) if timeout else self._work.wait())
        self._future.wait()
        return done

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return bool(self._future.done())

    def is_success(self) -> bool:
        return bool(self._future.done() and self._work.is_success())

    def exception(self) -> Any:
        return self._work.exception()

    def result(self) -> list[torch.Tensor]:
        return self._tensors

    def get_future(self) -> Any:
        return self._future

"""Recreates DDP's buckets, so that a recovered job adds gradients in the order of an undisturbed
one.

After its first backward DDP rebuilds its buckets in the order in which gradients became ready. The
layout decides the order in which numbers are added, so bit-for-bit equality depends on it. A rank
records the order once, with its private state. After a rebuild of the communicators *every* rank,
old or new, makes a fresh reducer and replays the order, if there is one: on a group of one, the
reducer's hooks are called in that order, with gradients of zeros, from within a backward. No user
code runs. See `docs/design.md`, "DDP buckets".
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from taskd.cython_api import allocations
from taskd.worker.communication import comm_hooks, fake_groups, shrunk, static_graph
from taskd.worker.state import gathering

REDUCER = (
    "_autograd_hook",
    "_rebuild_buckets",
    "_remove_autograd_hooks",
    "_update_process_group",
    "prepare_for_backward",
)


def unsupported(ddp: DistributedDataParallel) -> str | None:
    """Why this DDP's reducer cannot be rebuilt, or None."""
    if missing := [f"Reducer.{name}" for name in REDUCER if not hasattr(ddp.reducer, name)]:
        return f"torch {torch.__version__} lacks {', '.join(missing)}, so no DDP can be rebuilt"
    if getattr(ddp, "static_graph", False) and (missing := static_graph.lacking(ddp)):
        return (
            f"torch {torch.__version__} lacks {', '.join(missing)}, so DDP(static_graph=True)"
            " cannot be rebuilt; leave it out"
        )
    if getattr(ddp, "_delay_all_reduce_params", []):
        return (
            "DDP(delay_all_reduce_named_params=...) keeps gradients in a buffer of its own that"
            " cannot be rebuilt; leave it out"
        )
    if getattr(ddp, "mixed_precision", None) is not None:
        return "DDP(mixed_precision=...) cannot be rebuilt; use torch.autocast"
    for hook, state in getattr(ddp, "_comm_hooks", []):
        name = getattr(hook, "__name__", hook)
        if (
            state is not None
            and not isinstance(state, dist.ProcessGroup)
            and (why := comm_hooks.unsupported(name, state)) is not None
        ):
            return why
        if (kept := _kept_by(hook)) is not None:
            return (
                f"the DDP communication hook {name} keeps {kept}, which cannot be rebuilt; a hook"
                " must have no state"
            )
    return None


def _kept_by(hook: Any, depth: int = 5) -> str | None:
    """The state that a hook keeps by itself, in variables of the function that made it or in an
    object's attributes; None if it has none."""
    if isinstance(hook, types.MethodType) or not isinstance(
        hook, (types.FunctionType, types.BuiltinFunctionType)
    ):
        owner = getattr(hook, "__self__", hook)
        return (
            f"its state in a {type(owner).__name__}"
            if vars(type(owner)).get("__slots__") or getattr(owner, "__dict__", None)
            else None
        )
    cells = (
        zip(hook.__code__.co_freevars, hook.__closure__ or (), strict=False)
        if isinstance(hook, types.FunctionType)
        else ()
    )
    for name, cell in cells:
        try:
            value = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
        if isinstance(value, types.FunctionType) and depth:
            if (kept := _kept_by(value, depth - 1)) is not None:
                return kept
        elif not isinstance(value, _CONSTANT):
            return f"its state in the variable {name}"
    return None


_CONSTANT = (
    int,
    float,
    str,
    type(None),
    torch.dtype,
    torch.device,
    type,
    types.ModuleType,
    types.BuiltinFunctionType,
    dist.ProcessGroup,
)


def listener(ddp: DistributedDataParallel) -> ReadyOrder | static_graph.Firings:
    return static_graph.Firings(ddp) if ddp.static_graph else ReadyOrder(ddp)


class ReadyOrder:
    """Records the order in which gradients become ready in the first whole backward through a DDP.

    DDP itself records it one iteration later, but the second step already runs with the new layout.
    """

    def __init__(self, ddp: DistributedDataParallel) -> None:
        self._ddp = ddp
        self._size = 0
        self._seen: list[int] = []
        self._handles: list[Any] = []
        self.listen()

    @property
    def listening(self) -> bool:
        return bool(self._handles)

    def listen(self) -> None:
        """Start to listen, or listen again after the recorded backward was rolled back.
        Idempotent."""
        # with find_unused_parameters DDP keeps its first layout
        if self._handles or self._ddp.find_unused_parameters:
            return
        parameters, _ = self._ddp._build_params_for_reducer()
        self._size = len(parameters)
        self._handles = [
            p.register_post_accumulate_grad_hook(self._hook(i)) for i, p in enumerate(parameters)
        ]

    def _hook(self, index: int) -> Callable[[torch.Tensor], None]:
        def ready(_: torch.Tensor) -> None:
            if self._ddp.require_backward_grad_sync and index not in self._seen:
                self._seen.append(index)

        return ready

    def again(self) -> None:
        """Start over for a new attempt: an unfinished backward does not count."""
        self._seen.clear()

    def completed(self) -> list[int] | None:
        """The order, once complete, which ends the listening; otherwise None."""
        if not self._handles or len(self._seen) < self._size:
            return None
        self.stop()
        return list(self._seen)

    def put(self, order: list[int] | None) -> None:
        """Continue from `order`, taken from a record."""
        if order is None:
            self.listen()
        else:
            self.stop()

    def stop(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []


def agreed(
    ddps: list[DistributedDataParallel], orders: list[list[int] | None], device: torch.device
) -> list[list[int] | None]:
    """For each DDP the order of its group's first present rank, which DDP uses on all of them.
    Collectives on these groups. Raises RuntimeError if this rank's order and that one have
    different lengths: their layouts would differ."""
    return [
        # with a static graph each rank has its own, and DDP agrees on the buckets itself
        order if ddp.static_graph else _agreed(home(ddp), order, device)
        for ddp, order in zip(ddps, orders, strict=True)
    ]


def _agreed(group: Any, order: list[int] | None, device: torch.device) -> list[int] | None:
    first = shrunk.first(group)
    length = torch.tensor([len(order or ())], dtype=torch.int64, device=device)
    dist.broadcast(length, first, group=group)
    theirs = int(length.item())
    gathering.whole(device)
    if theirs != len(order or ()):
        raise RuntimeError(
            f"rank {first} has an order of {theirs} parameters for the buckets of a DDP, this rank"
            f" one of {len(order or ())}"
        )
    if not theirs:
        return None
    found = torch.tensor(order, dtype=torch.int64, device=device)
    dist.broadcast(found, first, group=group)
    indices = [int(index) for index in found.tolist()]
    gathering.whole(device)
    return indices


_BUFFERS = ("modules_buffers", "named_module_buffers")


_homes: weakref.WeakKeyDictionary[DistributedDataParallel, Any] = weakref.WeakKeyDictionary()


def home(ddp: DistributedDataParallel) -> Any:
    """The group that the script gave to this DDP."""
    return _homes.setdefault(ddp, ddp.process_group)


# which parameters required a gradient when a DDP was first seen: the ones it has managed from the
# start
_managed: weakref.WeakKeyDictionary[DistributedDataParallel, list[bool]] = (
    weakref.WeakKeyDictionary()
)


def rebuild(ddp: DistributedDataParallel, order: list[int] | None) -> None:
    """Make a fresh reducer on the DDP's group, with buckets laid out by `order`, if given.
    Gradients stay as they are. Like its predecessor, it does not know parameters unfrozen since DDP
    was made."""
    everything = list(ddp.module.parameters())
    present = [p.requires_grad for p in everything]
    _want(everything, _managed.setdefault(ddp, present))
    # under gradient_as_bucket_view a reducer moves .grad into its buckets, which the replay below
    # overwrites
    waiting = [parameter.grad for parameter in everything]
    for parameter in everything:
        parameter.grad = None
    try:
        _make(ddp, order)
    finally:
        for parameter, gradient in zip(everything, waiting, strict=True):
            parameter.grad = gradient
        _want(everything, present)


def _want(parameters: list[torch.nn.Parameter], flags: list[bool]) -> None:
    for parameter, flag in zip(parameters, flags, strict=True):
        if parameter.requires_grad != flag:
            parameter.requires_grad_(flag)


def _make(ddp: DistributedDataParallel, order: list[int] | None) -> None:
    broadcast = {name: getattr(ddp, name) for name in _BUFFERS if hasattr(ddp, name)}
    parameters, expect_sparse = ddp._build_params_for_reducer()
    # it has also listed the buffers again, with those added after DDP was made. Undisturbed ranks
    # do not broadcast these, and a replacement may not have them yet
    for name, value in broadcast.items():
        setattr(ddp, name, value)
    names = ddp._build_debug_param_to_name_mapping(parameters)
    ddp.reducer._remove_autograd_hooks()
    group = home(ddp)
    alone = bool(order) and not ddp.static_graph
    ddp.process_group = fake_groups.alone() if alone else group
    ddp._ddp_init_helper(parameters, expect_sparse, names, ddp.static_graph)
    ddp._has_rebuilt_buckets = False

    def in_backward(indices: Sequence[int]) -> None:
        _in_backward(lambda: [ddp.reducer._autograd_hook(i) for i in indices])  # type: ignore[attr-defined]

    seen = (order or [])[ddp.static_graph :]
    for index in set(seen):
        parameters[index].grad = _zeros_for(parameters[index], expect_sparse[index])
    if ddp.static_graph:
        static_graph.replay(ddp, parameters, order, in_backward)
    elif order:
        ddp.reducer.prepare_for_backward([])
        in_backward(order)
        ddp.reducer._rebuild_buckets()
        # not ddp._update_process_group: it would lay the buckets out again after the next backward
        ddp.process_group = group
        ddp.reducer._update_process_group(group)
        ddp._has_rebuilt_buckets = True
    for parameter in parameters:
        parameter.grad = None
    # after the replay, whose buckets must not reach a hook
    for hook, state in getattr(ddp, "_comm_hooks", []):
        dist._register_comm_hook(ddp.reducer, state, comm_hooks.followed(hook, state))


def _zeros_for(parameter: torch.Tensor, sparse: bool) -> torch.Tensor:
    """A gradient of zeros; sparse if the reducer expects that (an embedding)."""
    if sparse:
        return torch.zeros_like(parameter, layout=torch.sparse_coo)
    return torch.zeros_like(parameter)


class _Backward(torch.autograd.Function):
    """Calls something in a backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, call: Callable[[], Any]) -> torch.Tensor:
        ctx.call = call
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.call()
        return gradients[0], None


def _in_backward(call: Callable[[], Any]) -> None:
    """`call()` where autograd's engine takes callbacks. No hook of the script's runs."""
    with torch.enable_grad():
        made: Any = _Backward.apply(torch.zeros((), requires_grad=True), call)  # type: ignore[no-untyped-call]
        made.backward()


def mark_next_layout(ddp: DistributedDataParallel) -> None:
    """Mark the buckets that DDP makes at its next synchronizing forward as `scratch`: every repair
    makes them again, so losing a page of them is harmless."""
    original: Callable[..., Any] = ddp._pre_forward

    def pre_forward(*inputs: Any, **more: Any) -> Any:
        if not (ddp.require_backward_grad_sync and torch.is_grad_enabled()):
            return original(*inputs, **more)
        ddp.__dict__.pop("_pre_forward", None)
        allocations.scratch(True)
        try:
            return original(*inputs, **more)
        finally:
            allocations.scratch(False)

    ddp.__dict__["_pre_forward"] = pre_forward

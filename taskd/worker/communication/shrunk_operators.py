"""Collectives over shrunk groups (shrunk.py): translated or refused, on their way to a backend.

Calls from Python and from C++ (DDP's reducer, functional collectives, compiled graphs) all pass
through torch's dispatcher as operators of `c10d`. There, in front of the backends, kernels are put
while ranks are away; in a full job there are none. What a ReduceOp is cannot be read there, so AVG
is replaced where it is still visible: in the methods of ProcessGroup (averages.py) and in the
functional operators, which have it as text. DDP and FSDP2 (HSDP) use no other way.

Private names of torch for this are in this file and averages.py; tests/worker/test_shrunk.py
compares them with the installed torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from taskd.worker.communication import averages, methods, shrunk
from taskd.worker.communication.averages import AVERAGING

# of c10d, by what they are called in torch.distributed
REFUSED = {
    "_allgather_base_": "all_gather_into_tensor",
    "_reduce_scatter_base_": "reduce_scatter_tensor",
    "allgather_": "all_gather",
    "allgather_coalesced_": "all_gather_coalesced",
    "allgather_into_tensor_coalesced_": "all_gather_into_tensor_coalesced",
    "alltoall_": "all_to_all",
    "alltoall_base_": "all_to_all_single",
    "gather_": "gather",
    "gather_into_tensor_": "gather_single",
    # its errors name ranks by the backend's numbers
    "monitored_barrier_": "monitored_barrier",
    # whom it has received from is the backend's number
    "recv_any_source_": "recv without a source",
    "reduce_scatter_": "reduce_scatter",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter_tensor_coalesced",
    "scatter_": "scatter",
}
# which argument is a member of the group
TRANSLATED = {
    "broadcast_": ("broadcast", "root_rank"),
    "reduce_": ("reduce", "root_rank"),
    "send": ("send", "dst"),
    "recv_": ("recv", "src"),
}
PASSED = ("allreduce_", "allreduce_coalesced_", "barrier")  # right as they are
AVERAGED = ("all_reduce", "all_reduce_", "all_reduce_coalesced", "all_reduce_coalesced_")
# methods of ProcessGroup; not all torches have them
DIVIDING = ("split_group", "merge_remote_group")
GROUP = "process_group"  # the argument
CORE = ("_dispatch_keyset_full_after", "_dispatch_get_all_op_names")
KEY = "BackendSelect"  # in front of every backend, and in each call

Kernel = Callable[..., Any]
_libraries: list[Any] = []  # the kernels, while they are there


def obstacle() -> str | None:
    """Why, with this torch, no job can go on while ranks are away; None: one can."""
    c10d, functional = torch.ops.c10d, torch.ops._c10d_functional
    library = torch.library.Library
    needed: list[tuple[Any, str]] = [
        *((c10d, name) for name in TRANSLATED),
        *((functional, name) for name in AVERAGED),
        *((dist.ProcessGroup, name) for name in ("unbox", *AVERAGING)),
        *((dist.Work, name) for name in ("get_future", "wait", "is_success", "exception")),
        *((torch._C, name) for name in CORE),
        (torch._C.DispatchKey, KEY),
        (library, "impl"),
        (library, "_destroy"),
    ]
    missing = [f"{o.__name__}.{name}" for o, name in needed if not hasattr(o, name)]
    if not missing and "with_keyset" not in library.impl.__code__.co_varnames:
        missing.append("Library.impl(with_keyset)")
    if missing:
        return f"torch {torch.__version__} lacks {', '.join(missing)}"
    if unknown := sorted(_collectives() - {*REFUSED, *TRANSLATED, *PASSED}):
        return f"torch {torch.__version__} has collectives unknown to taskd: {', '.join(unknown)}"
    return None


def _collectives() -> set[str]:
    """torch's operators over a process group."""
    names = torch._C._dispatch_get_all_op_names()
    found = {n.removeprefix("c10d::").partition(".")[0] for n in names if n.startswith("c10d::")}
    return {name for name in found if _place(getattr(torch.ops.c10d, name).default, GROUP) >= 0}


def install() -> None:
    """Watch over the collectives of shrunk groups. Idempotent. Raises RuntimeError where this torch
    does not let it."""
    if _libraries:
        return
    if (why := obstacle()) is not None:
        raise RuntimeError(f"no job can go on without some of its ranks: {why}{shrunk.OR_NOT}")
    after = torch._C._dispatch_keyset_full_after(getattr(torch._C.DispatchKey, KEY))
    for namespace, names, make in (
        ("c10d", REFUSED, _refusing),
        ("c10d", TRANSLATED, _translating),
        ("_c10d_functional", AVERAGED, _averaging),
    ):
        library = torch.library.Library(namespace, "IMPL")
        _libraries.append(library)
        for name in names:
            if (packet := getattr(getattr(torch.ops, namespace), name, None)) is not None:
                library.impl(name, make(packet.default, name, after), KEY, with_keyset=True)
    layer = methods.IN_SHRUNK_GROUPS
    for name in AVERAGING:
        layer.put(dist.ProcessGroup, name, averages.method)
    for name in DIVIDING:
        layer.put(dist.ProcessGroup, name, _dividing(name))


def remove() -> None:
    """No rank is away any more: all groups have been noted as whole."""
    methods.IN_SHRUNK_GROUPS.remove()
    while _libraries:
        _libraries.pop()._destroy()
    shrunk.forget()


# -- kernels ---------------------------------------------------------------------------------------


def _place(operator: Any, name: str) -> int:
    """Where an argument of this name is, -1 where there is none."""
    names = [argument.name for argument in operator._schema.arguments]
    return names.index(name) if name in names else -1


def _refusing(operator: Any, name: str, after: Any) -> Kernel:
    at, redispatch = _place(operator, GROUP), operator.redispatch

    def kernel(keys: Any, *args: Any, **more: Any) -> Any:
        group = shrunk.of(dist.ProcessGroup.unbox(args[at]))
        if group is not None:
            raise group.refusal(REFUSED[name])
        return redispatch(keys & after, *args, **more)

    return kernel


def _translating(operator: Any, name: str, after: Any) -> Kernel:
    called, option = TRANSLATED[name]
    at, redispatch = _place(operator, GROUP), operator.redispatch
    where = _place(operator, option)

    def kernel(keys: Any, *args: Any, **more: Any) -> Any:
        group = shrunk.of(dist.ProcessGroup.unbox(args[at]))
        if group is not None:
            if name == "broadcast_":
                frame = sys._getframe().f_back  # None in a thread of torch's
                caller = frame.f_globals.get("__name__", "") if frame is not None else ""
                number = group.root(args[where], called, caller)
            else:
                number = group.member(args[where], called)
            args = (*args[:where], number, *args[where + 1 :])
        return redispatch(keys & after, *args, **more)

    return kernel


def _averaging(operator: Any, name: str, after: Any) -> Kernel:
    redispatch = operator.redispatch

    def kernel(keys: Any, given: Any, operation: str, group_name: Any, *rest: Any) -> Any:
        group = shrunk.called(group_name) if operation.lower() == "avg" else None
        if group is None:
            return redispatch(keys & after, given, operation, group_name, *rest)
        averages.check(averages.listed(given), group)
        found = redispatch(keys & after, given, "sum", group_name, *rest)
        tensors = averages.listed(found)
        for tensor in tensors:
            torch.ops._c10d_functional.wait_tensor(tensor)
        averages.divide(tensors, len(group.ranks))
        return found

    return kernel


def _dividing(name: str) -> Callable[[Any], Kernel]:
    def make(original: Any) -> Kernel:
        def method(handle: Any, *args: Any, **more: Any) -> Any:
            if (group := shrunk.of(handle)) is not None:
                raise group.refusal(name, "make all groups before taskd.protect()")
            return original(handle, *args, **more)

        return method

    return make

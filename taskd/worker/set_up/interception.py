"""Torch's functions while a set-up runs: collectives and calls of stores go through `now`, and the
groups of a replacement have no peers.

All calls from Python go through the methods of ProcessGroup, Work and Store, which are replaced
while a set-up runs; collectives that torch makes in C++ (DDP's broadcast of parameters) compute
state that a repair restores. Private names of torch for this are in this file and in
communication/groups.py; tests/worker/test_set_up.py compares them with the installed torch.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from taskd.worker.communication import groups, methods
from taskd.worker.communication.fake_groups import fake
from taskd.worker.discovery import project
from taskd.worker.set_up.calls import OFF, SetUp

OTHER = ("barrier", "monitored_barrier", "send", "_start_coalescing", "_end_coalescing")
WORK = ("wait", "is_completed", "synchronize")
STORE = (
    "add",
    "append",
    "barrier",
    "check",
    "compare_set",
    "delete_key",
    "get",
    "list_keys",
    "multi_get",
    "multi_set",
    "num_keys",
    "queue_len",
    "queue_pop",
    "queue_push",
    "set",
    "wait",
)
STORES = ("TCPStore", "FileStore")
FUNCTIONAL = (
    "all_gather_into_tensor",
    "all_gather_into_tensor_coalesced",
    "all_reduce",
    "all_reduce_",
    "all_reduce_coalesced",
    "all_to_all_single",
    "broadcast",
    "broadcast_",
    "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced",
)

SPAWNS = (
    "this script starts processes with torch.multiprocessing.spawn, in each of the ranks that the"
    " launcher has started: if they are to be its ranks, call what it spawns once, with the"
    " launcher's RANK and WORLD_SIZE, or start the script with python, unprotected"
)
log = logging.getLogger("taskd.worker")

now = SetUp()
_suspended = 0
_restore: list[Callable[[], None]] = []  # undo what is installed


def _active() -> bool:
    return not _suspended and now.mode != OFF


def _answers() -> bool:
    """Whether calls are recorded, or answered from the record."""
    return _active() and not now.theirs


def install() -> None:
    if _restore:
        return

    put = methods.IN_SET_UP.put  # leaves out what this torch does not have
    _restore.append(methods.IN_SET_UP.remove)

    def group_method(name: str) -> Callable[[Any], Any]:
        def make(original: Any) -> Any:
            def method(handle: Any, *args: Any, **more: Any) -> Any:
                if not _answers():
                    return original(handle, *args, **more)
                return now.collective(original, name, handle, args, more)

            return method

        return make

    def work_method(original: Any) -> Any:
        def method(work: Any, *args: Any, **more: Any) -> Any:
            found = original(work, *args, **more)
            if found is not False:
                now.over(work)
            return found

        return method

    def store_method(name: str) -> Callable[[Any], Any]:
        def make(original: Any) -> Any:
            def method(store: Any, *args: Any, **more: Any) -> Any:
                caller = sys._getframe(1).f_globals.get("__name__", "")
                # torch's own use of a store is not the script's
                if not _answers() or caller.partition(".")[0] in ("torch", "taskd"):
                    return original(store, *args, **more)
                return now.store(original, name, store, args, more)

            return method

        return make

    for holder in (torch.multiprocessing, sys.modules["torch.multiprocessing.spawn"]):
        put(holder, "start_processes", _spawning)
    for name in (*methods.FILLING, *OTHER):
        put(dist.ProcessGroup, name, group_method(name))
    for name in WORK:
        put(dist.Work, name, work_method)
    for name in STORE:
        put(dist.Store, name, store_method(name))
    operators = torch.ops._c10d_functional
    for name in FUNCTIONAL:
        if (packet := getattr(operators, name, None)) is not None:
            setattr(operators, name, _Operator(name, packet))
            _restore.append(functools.partial(setattr, operators, name, packet))


def _spawning(original: Any) -> Any:
    """Ranks that a script starts by itself, in each rank that the launcher has started, wait for
    each other without an end, or for a port: who reads the log should know why."""

    def start(*args: Any, **more: Any) -> Any:
        if os.environ.get("RANK") == "0" and not dist.is_initialized():
            log.warning("%s", SPAWNS)
        return original(*args, **more)

    return start


class _Operator:
    """A functional collective, as torch's own functions call it."""

    def __init__(self, name: str, packet: Any) -> None:
        self._name, self._packet = name, packet

    def __call__(self, *args: Any, **more: Any) -> Any:
        if not _answers() or torch.compiler.is_compiling():
            return self._packet(*args, **more)
        return now.functional(self._packet, self._name, args, more)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._packet, name)


def uninstall() -> None:
    while _restore:
        _restore.pop()()


@contextmanager
def suspended() -> Iterator[None]:
    """Inside, taskd's own collectives are neither recorded nor replayed."""
    global _suspended
    _suspended += 1
    try:
        yield
    finally:
        _suspended -= 1


# -- groups without peers --------------------------------------------------------------------------


def without_peers() -> None:
    """Until `uninstall()`, every group of this process is made with torch's fake backend, and every
    store connects to nothing."""
    asked: dict[str, Any] = {}  # for the default group
    initialize, helper = c10d.init_process_group, c10d._new_process_group_helper

    @functools.wraps(initialize)
    def init_process_group(*args: Any, **more: Any) -> None:
        if not _active():
            return initialize(*args, **more)
        given = _INITIALIZE.bind(*args, **more).arguments
        asked.update(backend=given.get("backend"), timeout=given.get("timeout"))
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        name = fake(asked["backend"])
        return initialize(name, store=dist.HashStore(), rank=rank, world_size=size)

    def new_process_group_helper(
        size: int, rank: int, ranks: list[int], backend: Any, *rest: Any, **more: Any
    ) -> Any:
        if not _active():
            return helper(size, rank, ranks, backend, *rest, **more)
        if not ranks:
            name, timeout = asked.get("backend"), asked.get("timeout")
        else:
            name, timeout = str(backend), more.get("timeout")
        made = helper(size, rank, ranks, c10d.Backend(fake(name)), *rest, **more)
        handle = made[0]
        if isinstance(handle, dist.ProcessGroup):
            name = str(c10d.Backend(name if name is not None else "undefined"))
            groups.stands_in(handle, name, timeout or c10d.default_pg_timeout)
        return made

    def broadcast_object_list(object_list: list[Any], *args: Any, **more: Any) -> Any:
        given = _OBJECTS.bind(object_list, *args, **more).arguments
        group = given.get("group")
        if not _active() or c10d._rank_not_in_group(group):
            return broadcast(object_list, *args, **more)
        if now.theirs:
            return None
        return now.objects(group, object_list)

    broadcast = c10d.broadcast_object_list
    instead = (
        init_process_group,
        functools.wraps(broadcast)(broadcast_object_list),
        lambda *args, **more: None,
        *(_no_store(getattr(dist, name)) for name in STORES),
    )
    replaced = dict(zip(map(id, _originals()), instead, strict=True))
    for names, key in places():
        if (new := replaced.get(id(names.get(key)))) is not None:
            _restore.append(functools.partial(names.__setitem__, key, names[key]))
            names[key] = new
    c10d._new_process_group_helper = new_process_group_helper  # type: ignore[assignment]
    _restore.append(functools.partial(setattr, c10d, "_new_process_group_helper", helper))


def _no_store(kind: type) -> type:
    """A class in the place of torch's `kind`, whose stores connect to nothing."""

    class Unconnected:
        def __new__(cls, *args: Any, **more: Any) -> Any:
            return dist.HashStore() if _active() else kind(*args, **more)

    Unconnected.__name__ = Unconnected.__qualname__ = kind.__name__
    return Unconnected


def places() -> list[tuple[dict[str, Any], str]]:
    """Where the functions to replace are: (the module's dict, the name). Some 1,500 other modules
    of torch use the attributes of these."""
    wanted = {id(value) for value in _originals()}
    found = list(_known)
    for name, module in project.new_modules():
        if name.startswith("torch.") and not name.startswith("torch.distributed"):
            continue
        names: Any = getattr(module, "__dict__", None)
        rows = list(names.items()) if type(names) is dict else ()
        found += [(names, key) for key, value in rows if id(value) in wanted]
    return found


def rehearse() -> None:
    """Called by the zygote to warm up: a fork then examines only modules that were loaded later."""
    global _known
    _known = places()
    install()  # torch makes its operators as they are asked for
    uninstall()


def _originals() -> tuple[Any, ...]:
    functions = (c10d.init_process_group, c10d.broadcast_object_list, c10d._store_based_barrier)
    return (*functions, *(getattr(dist, name) for name in STORES))


_INITIALIZE = inspect.signature(c10d.init_process_group)
_OBJECTS = inspect.signature(c10d.broadcast_object_list)
_known: list[tuple[dict[str, Any], str]] = []

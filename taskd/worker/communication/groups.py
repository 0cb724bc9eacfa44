"""torch's process groups, and the backends inside them.

A ProcessGroup object is a table of backends. It accepts another backend at any time and uses the
one registered last, so everything that holds the object (DDP, a device mesh, FSDP, functional
collectives, a variable of the script) uses the new one from then on. Old gloo backends are released
(group_tables.py). A renewal with any other backend leaves an idle one behind, and torch has room
for `Renewals.LIMIT` of them.

All private names of torch for groups are in this file and group_tables.py;
tests/worker/test_groups.py compares them with the installed torch.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from taskd import settings
from taskd.worker.communication import group_tables, shrunk, splitting
from taskd.worker.communication.fake_groups import FAKE
from taskd.worker.communication.group_tables import Dropped

COUNTED = ("ProcessGroupGloo", "ProcessGroupNCCL")  # backends, see Renewals.counted
# what `lacking` looks for
WORLD = ("pg_map", "pg_names", "pg_group_ranks", "pg_backend_config", "pg_to_tag", "tags_to_pg")
GROUP = (
    "_register_backend",
    "_set_default_backend",
    "_get_backend",
    "_set_group_name",
    "_device_types",
)
MODULE = ("_new_process_group_helper", "_update_default_pg", "_unregister_process_group")

NCCL = (
    "its tensors are on GPUs and it uses NCCL. Recovery over NCCL has not been proven on real GPUs"
    " yet: a kill could leave a rank with wrong parameters, unnoticed. TASKD_NCCL=try protects the"
    " job anyway (docs/devices.md)"
)


def lacking() -> list[str]:
    """What this torch lacks for groups to be renewed."""
    found = [
        *(f"distributed_c10d.{n}" for n in MODULE if not hasattr(c10d, n)),
        *(f"_World.{n}" for n in (*WORLD, "group_count") if not hasattr(c10d._world, n)),
        *(f"ProcessGroup.{n}" for n in GROUP if not hasattr(dist.ProcessGroup, n)),
    ]
    gloo = getattr(dist, "ProcessGroupGloo", None)
    if gloo is not None and not hasattr(gloo, "create_device"):
        found.append("ProcessGroupGloo.create_device")
    return found


@dataclass(frozen=True, eq=False)
class Group:
    """A group that this rank is a member of. `backend`: the name that the script asked for, which
    get_backend() returns; `ranks`: global ones, in the group's order."""

    handle: dist.ProcessGroup
    name: str
    ranks: tuple[int, ...]
    backend: str
    timeout: timedelta

    @property
    def default(self) -> bool:
        return self.handle is c10d._world.default_pg


# group -> backend and time-out that the script asked for, where torch's fake backend stands in
_stand_ins: dict[dist.ProcessGroup, tuple[str, timedelta]] = {}


def stands_in(handle: dist.ProcessGroup, backend: str, timeout: timedelta) -> None:
    """Note that `handle`, a group of torch's fake backend, stands in for a group of `backend`,
    whose name it shows."""
    _stand_ins[handle] = backend, timeout
    c10d._world.pg_map[handle] = (backend, c10d._world.pg_map[handle][1])
    config = c10d.BackendConfig(c10d.Backend(backend))
    c10d._world.pg_backend_config[handle] = str(config)


def present() -> list[Group]:
    """The groups of this rank: the default one, then the others in the order of their names."""
    found = []
    for handle, (backend, _) in c10d._world.pg_map.items():
        asked = _stand_ins.get(handle)
        found.append(
            Group(
                handle,
                c10d._world.pg_names[handle],
                tuple(dist.get_process_group_ranks(handle)),
                asked[0] if asked is not None else backend,
                asked[1] if asked is not None else _timeout(handle),
            )
        )
    return sorted(found, key=lambda g: (not g.default, g.name))


def name(handle: dist.ProcessGroup) -> str:
    return c10d._world.pg_names[handle]


def obstacle(device: str = "cpu") -> str | None:
    """Why this rank's groups cannot be renewed, or None. `device`: the type of the tensors'."""
    if missing := lacking():
        return f"torch {torch.__version__} lacks {', '.join(missing)}"
    for group in present():
        if (why := _unrenewable(group)) is not None:
            return f"process group {group.name!r} of ranks {list(group.ranks)}: {why}"
        nccl = device == "cuda" and "nccl" in _backends(group.backend).values()
        if nccl and not settings.tries_nccl(os.environ):
            return NCCL
    return None


def _unrenewable(group: Group) -> str | None:
    if type(group.handle) is not dist.ProcessGroup:
        return f"it is a {type(group.handle).__name__}, which is no torch ProcessGroup"
    if "mpi" in _backends(group.backend).values():
        return "its backend is MPI, whose processes cannot be replaced"
    return None


# -- new backends ----------------------------------------------------------------------------------


def named(least: int = 0) -> int:
    """How many groups torch has named, and calls the next one by: from now on at least so many."""
    c10d._world.group_count = max(c10d._world.group_count, least)
    return int(c10d._world.group_count)


class Renewals:
    """Puts new backends into groups. One for each process."""

    # torch keeps the type of a backend in 8 bits; its own types are below 8
    FIRST, LIMIT = 8, 255

    def __init__(self) -> None:
        self._types: dict[dist.ProcessGroup, int] = {}  # the last one that was used
        self._current: dict[dist.ProcessGroup, list[Any]] = {}  # the backends in use
        self._made = c10d._world.group_count  # how many groups torch had named, at `counts`
        self._kept: set[dist.ProcessGroup] = set()
        self._sized: set[dist.ProcessGroup] = set()  # see `_keep_size`
        self.dropped = Dropped()
        self._devices: list[Any] = []  # gloo's, which have a thread and a listening socket each

    @property
    def used(self) -> int:
        """The highest type in use, at most LIMIT."""
        return max(self._types.values(), default=self.FIRST - 1)

    def begun(self) -> int:
        """How many collectives this rank has begun on all its groups, but for new ones. From any
        thread."""
        current = list(self._current.values())  # at once: the training thread changes it
        return sum(b._get_sequence_number_for_group() for backends in current for b in backends)

    def counts(self) -> dict[dist.ProcessGroup, int]:
        """How many collectives this rank has begun in each group, where backends count them. From
        the thread that makes and destroys them."""
        current, found = self._current, {}
        self._made = c10d._world.group_count
        if current.keys() != c10d._world.pg_map.keys():
            # some have been destroyed, or made since the last renewal
            current = {h: current.get(h) or _distinct(h) for h in c10d._world.pg_map}
            self._current = current
        for handle, backends in current.items():
            total = 0
            for backend in backends:
                total += backend._get_sequence_number_for_group()
            found[handle] = total
        return found

    def go_back(self) -> None:
        """Drop groups made since `counts`: the code that made them runs again, and torch names
        groups by counting them."""
        for handle in [h for h in c10d._world.pg_map if h not in self._current]:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(handle))  # see `renew`
            _forget(handle)
        c10d._world.group_count = self._made

    def counted(self, handle: dist.ProcessGroup) -> bool:
        """Whether members of the group count the same: the backends' counts are known to be of
        collectives alone. HCCL's are not: torch_npu gives a batch of sends to the backend itself,
        which counts it."""
        backends = self._current.get(handle, ())
        return bool(backends) and all(type(b).__name__ in COUNTED for b in backends)

    def renew(self, group: Group, store: dist.Store, away: frozenset[int] = frozenset()) -> None:
        """Connect to the group's other members through `store`, but for those that are `away`, and
        use the new backend from now on. Raises what the collective library raises."""
        handle: Any = group.handle
        prefix = dist.PrefixStore(f"{group.name}/", store)
        by_device = _backends(group.backend)
        members = tuple(rank for rank in group.ranks if rank not in away)
        made = {n: self._make(group, n, prefix, members) for n in dict.fromkeys(by_device.values())}
        own = {n: c10d.Backend.backend_type_map.get(n) for n in made}
        if self._release(group, list(own)):
            types: dict[str, Any] = own
        else:
            types = {n: self._type(handle, n) for n in made}
        for device, name in by_device.items():
            handle._register_backend(torch.device(device), types[name], made[name])
        shrunk.note(handle, group.name, group.ranks, away)
        handle._set_group_name(c10d._world.pg_names[handle])  # to 2.8 it is the backend's
        self._current[handle] = list(made.values())
        c10d._world.pg_map[handle] = (group.backend, prefix)
        if _stand_ins.pop(handle, None) is not None:
            # only its name is asked for; collectives choose their backend by device
            handle._set_default_backend(types["nccl" if "nccl" in types else next(iter(types))])
            config = c10d.BackendConfig(c10d.Backend(group.backend))
            c10d._world.pg_backend_config[handle] = str(config)
        elif handle not in self._kept:
            # The destructor of a backend waits for its collectives, and the interpreter calls it at
            # exit, where a collective that never ends would hang it. So it is never called.
            self._kept.add(handle)
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(handle))
        self._keep_size(group, next(iter(types.values())))
        if [*made] == ["gloo"]:
            splitting.note(handle)

    def _keep_size(self, group: Group, newest: Any) -> None:
        """The group's own rank and size, whoever is away: from torch 2.15 on they are those of its
        default backend, if it has one."""
        handle: Any = group.handle
        try:
            handle.size()
        except RuntimeError:  # a part of a stand-in, whose default backend is gone
            handle._set_default_backend(newest)
        if handle.size() != len(group.ranks):
            handle._set_default_backend(dist.ProcessGroup.BackendType.UNDEFINED)
            self._sized.add(handle)
        elif handle in self._sized and handle._get_backend(handle._device_types[0]).size() == len(
            group.ranks
        ):
            handle._set_default_backend(newest)
            self._sized.discard(handle)

    def _release(self, group: Group, names: list[str]) -> bool:
        """Make the group drop its backends if they are gloo's: others' destructors may do more than
        wait."""
        handle = group.handle
        if handle in _stand_ins or names != ["gloo"] or _is_detailed():
            return False
        before = self._current.get(handle) or _distinct(handle)
        if not all(isinstance(b, dist.ProcessGroupGloo) for b in before):
            return False
        if not group_tables.empty(handle):
            return False
        self.dropped.note(before)
        return True

    def _type(self, handle: Any, name: str) -> Any:
        """A type that the group has not seen yet: it keeps the first backend of each."""
        own = c10d.Backend.backend_type_map.get(name, dist.ProcessGroup.BackendType.CUSTOM)
        if handle in _stand_ins and own is not dist.ProcessGroup.BackendType.CUSTOM:
            return own
        number = self._types.get(handle, self.FIRST - 1) + 1
        if number > self.LIMIT:
            raise RuntimeError(
                f"process group {handle.group_name!r} has taken"
                f" {self.LIMIT - self.FIRST + 1} backends: torch has no room for more"
            )
        self._types[handle] = number
        return dist.ProcessGroup.BackendType(number)

    def _make(self, group: Group, name: str, store: dist.Store, members: tuple[int, ...]) -> Any:
        me = members.index(group.ranks[group.handle.rank()])
        if name == "gloo" and not _is_detailed():
            gloo: Any = dist.ProcessGroupGloo
            options = gloo._Options()
            options._timeout = group.timeout
            options._devices = self._gloo_devices()
            backend: Any = dist.ProcessGroupGloo(store, me, len(members), options)
            if torch.__version__ < "2.14":  # later it only warns
                backend._set_sequence_number_for_group()
            return backend
        return _throwaway(group, name, store, members)

    def _gloo_devices(self) -> list[Any]:
        """Choose gloo's devices as torch does, but share them among all groups and generations."""
        if not self._devices:
            gloo = dist.ProcessGroupGloo
            names = [n for n in os.environ.get("GLOO_SOCKET_IFNAME", "").split(",") if n]
            self._devices = [gloo.create_device(interface=n) for n in names] or [
                gloo.create_default_device()
            ]
        return self._devices


def _is_detailed() -> bool:
    return bool(dist.get_debug_level() is dist.DebugLevel.DETAIL)


def _throwaway(group: Group, name: str, store: dist.Store, members: tuple[int, ...]) -> Any:
    """A backend made by torch for a temporary group of `members`, which is then dropped."""
    options = None
    for device, backend in _backends(group.backend).items():
        if backend == name and group.handle not in _stand_ins:
            options = getattr(group.handle._get_backend(torch.device(device)), "options", None)
    temporary = f"{group.name} of taskd"
    _own.making = True
    try:
        made, _ = c10d._new_process_group_helper(
            len(members),
            members.index(group.ranks[group.handle.rank()]),
            list(members),
            c10d.Backend(name),
            store,
            group_name=temporary,  # type: ignore[arg-type]
            backend_options=options,
            timeout=group.timeout,
        )
    finally:
        _own.making = False
    device = next(d for d, b in _backends(group.backend).items() if b == name)
    backend = made._get_backend(torch.device(device))
    _forget(made)
    return backend


def _forget(handle: Any) -> None:
    """Take a group out of torch's tables; its backends live on."""
    world = c10d._world
    name = world.pg_names.pop(handle, None)
    tag = world.pg_to_tag.pop(handle, "")
    for tagged in (world.tags_to_pg.get(tag, []), world.tags_to_pg.get("", [])):
        if handle in tagged:
            tagged.remove(handle)
    for table in (world.pg_map, world.pg_group_ranks, world.pg_backend_config):
        table.pop(handle, None)
    if name is not None:
        c10d._unregister_process_group(name)


def _distinct(handle: Any) -> list[Any]:
    """The backends of a group that count their collectives."""
    found: list[Any] = []
    for device in handle._device_types:
        try:
            backend = handle._get_backend(device)
            backend._get_sequence_number_for_group()
        except RuntimeError:
            continue
        if not any(backend is b for b in found):
            found.append(backend)
    return found


def _backends(name: str) -> dict[str, str]:
    """Device type -> backend, of a backend's name as the script gives it."""
    return dict(c10d.BackendConfig(c10d.Backend(name)).get_device_backend_map())


def _timeout(handle: Any) -> timedelta:
    try:
        return handle._get_backend(handle._device_types[0]).options._timeout  # type: ignore[no-any-return]
    except (RuntimeError, AttributeError, IndexError):
        return c10d.default_pg_timeout


# -- groups that come and go -----------------------------------------------------------------------


# the arguments of _new_process_group_helper, as far as torch gives them by their places
HELPER = ("group_size", "group_rank", "ranks", "backend", "store", "group_name")
_watched = False
_own = threading.local()  # `making`: this thread makes a group for taskd


def watch(around: Callable[[], Any]) -> None:
    """From now on groups are made inside `around()`, a context manager; the script's are refused
    while ranks are away. Idempotent."""
    global _watched
    if _watched:
        return
    _watched = True
    splitting.install(around)
    original = c10d._new_process_group_helper

    def made(*arguments: Any, **more: Any) -> Any:
        given = {**dict(zip(HELPER, arguments, strict=False)), **more}
        if not getattr(_own, "making", False) and FAKE not in str(given.get("backend")):
            shrunk.refuse_group(given.get("group_name", "?"))
        with around():
            return original(*arguments, **more)

    c10d._new_process_group_helper = made

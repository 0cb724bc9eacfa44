"""Empties a process group's table of backends, so that the old ones are released.

torch's Python interface only adds to the table. Its C++ interface has `release_resources()`, which
a group calls when it is no longer used: it drops the backends. The address of the C++ object comes
from pybind11's own way to hand objects to other libraries, which checks the kinds on both sides.
Where this torch lacks one of the two, idle backends stay.
"""

from __future__ import annotations

import builtins
import ctypes
import logging
import queue
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

log = logging.getLogger("taskd.worker")

_TYPE = "_ZTIN4c10d12ProcessGroupE"  # typeid(c10d::ProcessGroup)
_RELEASE = "_ZN4c10d12ProcessGroup17release_resourcesEv"
_CONDUIT = "_pybind11_conduit_v1_"
_INTERNALS = "__pybind11_internals_v"


def empty(handle: dist.ProcessGroup) -> bool:
    """Make the group drop its backends; returns False if that is impossible. The caller keeps
    references to them, and registers a new one at once."""
    release, where = _release(), address(handle)
    if release is None or where is None:
        return False
    release(where)
    return True


@cache
def _library() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    except OSError:
        return None


@cache
def _release() -> Callable[[int], None] | None:
    found = getattr(_library(), _RELEASE, None)
    if found is not None:
        found.argtypes, found.restype = [ctypes.c_void_p], None
    return found


def address(handle: dist.ProcessGroup) -> int | None:
    """The address of the C++ object, None where pybind11 does not give it."""
    conduit, library = getattr(handle, _CONDUIT, None), _library()
    if conduit is None or library is None or not hasattr(library, _TYPE):
        return None
    api = ctypes.pythonapi
    api.PyCapsule_New.restype = ctypes.py_object
    api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    api.PyCapsule_GetName.restype = ctypes.c_char_p
    api.PyCapsule_GetName.argtypes = [ctypes.py_object]
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    kind = ctypes.addressof(ctypes.c_char.in_dll(library, _TYPE))
    name = b"St9type_info"
    for abi in _abis():
        made = conduit(abi, api.PyCapsule_New(kind, name, None), b"raw_pointer_ephemeral")
        if made is not None:
            found = api.PyCapsule_GetPointer(made, api.PyCapsule_GetName(made))
            return int(found)
    return None


@cache
def _abis() -> tuple[bytes, ...]:
    """pybind11's names for the compilers of this process's libraries: the end of the name under
    which each keeps its shared data, `__pybind11_internals_v11_<abi>__`."""
    names = {*vars(builtins), *_interpreter()}
    found = {n[len(_INTERNALS) :] for n in names if isinstance(n, str) and n.startswith(_INTERNALS)}
    return tuple(sorted(n.partition("_")[2].removesuffix("__").encode() for n in found))


def _interpreter() -> dict[Any, Any]:
    api = ctypes.pythonapi
    api.PyInterpreterState_Get.restype = ctypes.c_void_p
    api.PyInterpreterState_GetDict.restype = ctypes.py_object
    api.PyInterpreterState_GetDict.argtypes = [ctypes.c_void_p]
    return api.PyInterpreterState_GetDict(api.PyInterpreterState_Get())  # type: ignore[no-any-return]


class Dropped:
    """Backends that no group uses any more, released one by one in a separate thread: a destructor
    waits for the backend's collectives, and one that never ends keeps the rest alive. `left`: how
    many there are."""

    def __init__(self) -> None:
        self._noted: list[Any] = []
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self.left = 0

    def note(self, backends: list[Any]) -> None:
        self._noted += backends
        self.left += len(backends)

    def let_go(self) -> None:
        """Release the noted backends."""
        if self._noted and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="taskd-drop", daemon=True)
            self._thread.start()
        while self._noted:
            self._queue.put(self._noted.pop())

    def _run(self) -> None:
        while True:
            backend = self._queue.get()
            del backend  # torch's destructors wait without the interpreter's lock
            self.left -= 1

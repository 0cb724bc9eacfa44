"""Reads a job's state page from outside with libtaskd's own functions: the agent's view of its
ranks."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

from taskd.cython_api import library, library_path


class View(ctypes.Structure):
    """struct taskd_view of csrc/libtaskd.h, all of it: libtaskd writes all of it."""

    _fields_ = [
        *((name, ctypes.c_uint32) for name in ("rank", "phase", "incarnation", "interruption")),
        ("pid", ctypes.c_int32),
        ("attached", ctypes.c_uint32),
        *(
            (name, ctypes.c_uint64)
            for name in ("step", "heartbeat_ns", "started", "usual_ns", "until_ns", "damaged")
        ),
        *((name, ctypes.c_uint64) for name in ("came_ns", "waited_ns")),
        ("asked", ctypes.c_int32),
        ("handles", ctypes.c_uint32),
    ]


class Damage(ctypes.Structure):
    """struct taskd_damage."""

    _fields_ = [
        *((name, ctypes.c_uint64) for name in ("addr", "bytes", "base", "size", "born", "mono_ns")),
        ("kind", ctypes.c_uint32),
        ("tid", ctypes.c_int32),
        ("number", ctypes.c_uint64),
    ]


class StatePage:
    """The state page of one node. Slots are local ranks."""

    def __init__(self, path: Path) -> None:
        fd = os.open(path, os.O_RDWR)
        try:
            self._map = mmap.mmap(fd, 0)
        finally:
            os.close(fd)
        self._page = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(self._map)))
        self._library = ctypes.CDLL(library_path())
        if self._library.taskd_abi() != library.ABI:
            raise RuntimeError("libtaskd.so is of another build than its Cython module: make build")

    @classmethod
    def of(cls, pid: int) -> StatePage:
        """The page to which the rank with this pid is attached."""
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        return cls(next(Path(line.split()[-1]) for line in lines if line.endswith("/page")))

    def read(self, slot: int) -> View:
        view = View()
        self._library.taskd_read(self._page, slot, ctypes.byref(view))
        return view

    def damages(self, slot: int) -> list[Damage]:
        """The latest few memory pages that the rank's process has lost, each with the moment of the
        touch."""
        found = (Damage * 4)()
        return found[: self._library.taskd_damages(self._page, slot, found)]

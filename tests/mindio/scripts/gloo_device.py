"""In place of torch_npu in a training script: the calls by which a framework stops a device and
breaks its links, for gloo on the CPU. Everything else of the script is as on a device.

`stop_device` ends the collectives of this process, as torch_npu.npu.stop_device does: it shuts down
the connections that came with the groups.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
import stat
from collections.abc import Iterator

import torch

_links: set[int] = set()
_before: set[int] | None = None  # connections from before the groups that are being made


def _connections() -> set[int]:
    """Descriptors of connections to other ranks, and not to the store."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as line:
                if line.family not in (socket.AF_INET, socket.AF_INET6):
                    continue
                if line.getpeername()[1] != int(os.environ["MASTER_PORT"]):
                    found.add(int(name))
    return found


@contextlib.contextmanager
def making_groups() -> Iterator[None]:
    """Connections that appear inside are the groups'."""
    global _before
    _before = _connections()
    try:
        yield
        _links.update(_connections() - _before)
    finally:
        _before = None


def forget_links() -> None:
    _links.clear()


def stop_device() -> None:
    present, before = _connections(), _before
    _shut_down(present & _links if before is None else present - before)


def cut_a_link() -> None:
    """Break one connection, as a link error does."""
    _shut_down(set(sorted(_links & _connections())[:1]))


def _shut_down(descriptors: set[int]) -> None:
    for fd in descriptors:
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as line:
            line.shutdown(socket.SHUT_RDWR)


def poison(tensor: torch.Tensor) -> None:
    """Have the kernel report a page of the tensor's memory as lost. The only use of taskd here: it
    has the system call; what follows is the kernel's doing."""
    from taskd.cython_api import poison

    page = (tensor.data_ptr() + mmap.PAGESIZE) & ~(mmap.PAGESIZE - 1)
    assert page + mmap.PAGESIZE <= tensor.data_ptr() + tensor.nbytes, "no whole page"
    poison.page(page)

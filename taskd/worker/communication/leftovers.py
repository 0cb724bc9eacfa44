"""Connections of former generations that gloo still polls.

A message whose header has arrived waits in its connection until its receiver is ready. If the
connection is cut before that, the receiver never comes, and gloo neither reads nor closes the
connection: its loop thread wakes forever and occupies a core. So each connection's entry in gloo's
epoll set is made to report once more and then never. It must stay in the set: gloo removes the
entry when the backend is destroyed, and ends the process if it is missing.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import re

EVENTPOLL = "anon_inode:[eventpoll]"
# of <sys/epoll.h>; Python's select.epoll would put its own data into an entry
_MOD, _ONESHOT = 3, 1 << 30
_epoll_ctl = ctypes.CDLL(None).epoll_ctl
_ENTRY = re.compile(r"^tfd:\s*(\d+) events:\s*\w+ data:\s*(\w+)", re.MULTILINE)


class _Event(ctypes.Structure):
    if platform.machine() == "x86_64":
        _pack_ = 1
    _fields_ = (("events", ctypes.c_uint32), ("data", ctypes.c_uint64))


def note(descriptors: list[int]) -> dict[int, str]:
    """Descriptor -> inode, as in "socket:[4711]", of the connections that are about to be left."""
    found = {}
    for fd in descriptors:
        with contextlib.suppress(OSError):
            found[fd] = _what(fd)
    return found


def _what(fd: int) -> str:
    # fstat would wait for the server of a file that has got this descriptor meanwhile
    return os.readlink(f"/proc/self/fd/{fd}")


def release(left: dict[int, str]) -> int:
    """Stop the connections in `left` that are still open from waking this process; returns their
    number. Call it when the next generation is connected, and before a backend of the last one is
    destroyed: whatever gloo closes by itself has been closed by then."""
    stale = set()
    for fd, what in left.items():
        with contextlib.suppress(OSError):
            if what.startswith("socket:") and _what(fd) == what:
                stale.add(fd)
    for poll, entries in _polls() if stale else ():
        for fd, data in entries:
            if fd in stale:
                event = _Event(_ONESHOT, data)
                _epoll_ctl(poll, _MOD, fd, ctypes.byref(event))
    return len(stale)


def _polls() -> list[tuple[int, list[tuple[int, int]]]]:
    """The epoll sets of this process: descriptor, and what they poll: descriptor and data."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if _what(int(name)) == EVENTPOLL:
                with open(f"/proc/self/fdinfo/{name}") as file:
                    entries = _ENTRY.findall(file.read())
                found.append((int(name), [(int(fd), int(data, 16)) for fd, data in entries]))
    return found
